"""Saved models for the demo, with the code that lies beside their weights where that can be trusted."""

import filecmp
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import gradio as gr
from huggingface_hub import metadata_load
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.utils import cached_file
from yaml import YAMLError

import vanilla_transformer
from vanilla_transformer import modeling_vanilla_transformer
from vanilla_transformer.conversion.mapping import MAPPINGS
from vanilla_transformer.decoding import token_text
from vanilla_transformer.inside.readings import encoding
from vanilla_transformer.loading import check_source, has_code, load_whole


LONGEST_INPUT = 300  # characters
CODE = Path(modeling_vanilla_transformer.__file__).parent  # the installed files, copies of which lie in model folders
KINDS = [
    config_class.model_type
    for config_class in (
        vanilla_transformer.VanillaTransformerConfig,
        vanilla_transformer.VanillaTransformerEncoderConfig,
        vanilla_transformer.VanillaTransformerDecoderConfig,
    )
]

# End of the class's name -> Auto class that loads it.
AUTO_CLASSES = {
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "ForCausalLM": "AutoModelForCausalLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForQuestionAnswering": "AutoModelForQuestionAnswering",
}


@dataclass(eq=False)
class Loaded:
    """A model with its tokenizer. `name` tells nothing of where it lies; `head` is a key of `AUTO_CLASSES`; `examples`
    are texts that its card offers to try.
    """

    name: str
    head: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    examples: Sequence[str] = ()


def load(
    source: str, trust_remote_code: bool = False, engine: str = "pytorch", quantization: str | None = None
) -> Loaded:
    """A model from a folder or the Hub, in evaluation mode. Only the eager form of attention returns its weights.

    Args:
        trust_remote_code: run the code beside the weights, whatever it is. Otherwise it runs only where it is this
            project's own; where not, the installed classes take its place.
        engine: what searches for translations, "pytorch" or "ctranslate2".
        quantization: of CTranslate2's weights, such as "int8"; by default float32.

    Raises:
        FileNotFoundError: there is no such folder. A name on the Hub is one of an owner and one of a model.
        ValueError: it is no model of this project, has no head that the demo can show, or is not whole.
        ImportError: CTranslate2 is asked for, and not installed.
    """
    check_source(source)
    settings, _ = PreTrainedConfig.get_config_dict(source)
    head = check_settings(source, settings)
    revision = settings.get("_commit_hash")  # all files of the Hub are of one commit, also if another comes meanwhile
    loaded_class = class_for(source, settings, AUTO_CLASSES[head], revision, trust_remote_code)
    model = load_whole(loaded_class, source, revision=revision or "main", attn_implementation="eager")
    tokenizer = one_at_a_time(
        AutoTokenizer.from_pretrained(source, revision=revision or "main", trust_remote_code=trust_remote_code)
    )
    if engine == "ctranslate2" and head == "ForConditionalGeneration":
        from vanilla_transformer.conversion.engine import use_ctranslate2  # which need not be installed

        use_ctranslate2(model, tokenizer, source, quantization)
    return Loaded(Path(source).name, head, model, tokenizer, examples_of_card(source, revision))


def one_at_a_time(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer, which now reads the texts of several threads one after the other.

    How to read a text, as with `split_special_tokens`, it keeps in itself, where another's call would change it.
    """
    kind, lock = type(tokenizer), Lock()

    def call(self, *texts, **options):
        with lock:
            return kind.__call__(self, *texts, **options)

    tokenizer.__class__ = type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
    return tokenizer


def examples_of_card(source: str, revision: str | None) -> list[str]:
    """The texts of the widgets of a model's card; none where it has no card, or none that can be read."""
    try:
        metadata = metadata_load(cached_file(source, "README.md", revision=revision))
    except (OSError, ValueError, YAMLError):
        return []
    widgets = (metadata or {}).get("widget")
    texts = [widget.get("text") for widget in widgets if isinstance(widget, dict)] if isinstance(widgets, list) else []
    return [text for text in texts if isinstance(text, str) and 0 < len(text) <= LONGEST_INPUT]


def check_settings(source: str, settings: dict) -> str:
    """The head of a model by its config.json; before any code of it runs, what is wrong if the demo cannot show it."""
    kind = settings.get("model_type", "of an unknown type")
    architecture = (settings.get("architectures") or ["none"])[0]
    if kind not in KINDS:
        advice = f"The demo shows those of this project: {', '.join(KINDS)}."
        if kind in MAPPINGS:
            advice = f"Make one of this project of it: vanilla-transformer import --source {source} --output ..."
        raise ValueError(f"{source} holds a model of another architecture ({kind}). {advice}")
    head = next((head for head in AUTO_CLASSES if architecture.endswith(head)), None)
    if head is None or not hasattr(vanilla_transformer, architecture):
        raise ValueError(
            f"{source} holds a model of class {architecture}; its name must end in one of: {', '.join(AUTO_CLASSES)}."
        )
    return head


def class_for(
    source: str, settings: dict, auto_class: str, revision: str | None, trust_remote_code: bool
) -> type[PreTrainedModel]:
    """The class beside the weights, if it is trusted or this project's own; else the installed one.

    The Auto classes would always prefer the installed one.
    """
    installed = getattr(vanilla_transformer, settings["architectures"][0])
    reference = settings.get("auto_map", {}).get(auto_class)
    if reference is None or not has_code(source, reference, revision):
        return installed
    foreign = [] if trust_remote_code else foreign_code(source, reference, revision)
    if foreign:
        print(
            f"{source}: the code beside its weights differs from this project's own ({', '.join(foreign)}), so it "
            "does not run; the installed code does. To run it, read it and add --trust_remote_code.",
            file=sys.stderr,
        )
        return installed
    return get_class_from_dynamic_module(reference, source, revision=revision)


def foreign_code(source: str, reference: str, revision: str | None) -> list[str]:
    """Which of a model's files of code are not copies of the installed ones.

    Code that is ours word for word imports only files of ours beside it, so all that could run is compared.

    Args:
        reference: what its config names as its class, as "file.Class", or "other/repository--file.Class".
    """
    ours = sorted(path.name for path in CODE.glob("*_vanilla_transformer.py"))
    if f"{reference.split('.')[0]}.py" not in ours:
        return [reference]
    copies = {
        name: cached_file(source, name, revision=revision, _raise_exceptions_for_missing_entries=False)
        for name in ours
    }
    return [name for name, copy in copies.items() if copy and not filecmp.cmp(copy, CODE / name, shallow=False)]


def refusal(message: str) -> gr.Error:
    """What is wrong with a visitor's input, for the visitor; there is nothing in it for the terminal."""
    return gr.Error(message, print_exception=False)


def check_text(text: str | None, purpose: str, keep_space: bool = False) -> str:
    """The text, without the space around it or with; in plain words what is wrong, if it is none, empty or too long.

    A language model goes on otherwise behind a space than behind a word. To others it is a slip of who types.
    """
    if not isinstance(text, str | None):  # the page gives texts alone, a program may give anything
        raise refusal(f"A text is needed {purpose}, not {text!r:.50}.")
    text = text or ""
    if not text.strip():
        raise refusal(f"Please type something {purpose}.")
    if not keep_space:
        text = text.strip()
    if len(text) > LONGEST_INPUT:
        raise refusal(f"Please keep to {LONGEST_INPUT} characters; this text has {len(text):,}.")
    return text


def is_integer(value: Any) -> bool:
    """Whether a value that came as JSON is an integer; True is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_number(name: str, number: float | None, least: float, most: float) -> None:
    """Say in plain words that a number is none, or outside its limits."""
    if not isinstance(number, int | float) or not least <= number <= most:  # nor is NaN between them
        raise refusal(f"{name} has to be a number from {least} to {most}, not {number}.")


def warn_of_unknown_letters(loaded: Loaded, text: str) -> bool:
    """Tell the reader when most letters are of a script that training never had: no token holds one of them whole.

    Returns:
        Whether it was so.
    """
    ids = loaded.tokenizer(text, add_special_tokens=False, **encoding(loaded.model))["input_ids"]
    known = "".join(loaded.tokenizer.decode([i], skip_special_tokens=True) for i in ids)
    unknown = 2 * sum(map(str.isalpha, known)) < sum(map(str.isalpha, text))
    if unknown:
        gr.Warning("The model has never seen most of these letters, so what it says about them means nothing.")
    return unknown


def token_name(loaded: Loaded, i: int) -> str:
    """A token as a reader sees it, in quotes; one that is a part of a character, which has no text, by its name."""
    text = token_text(loaded.tokenizer, i)
    return loaded.tokenizer.convert_ids_to_tokens(i) if "\ufffd" in text else repr(text)
