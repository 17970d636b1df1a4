"""Saved models for the demo, through the Auto classes and with the code that lies beside their weights."""

from dataclasses import dataclass
from pathlib import Path

import gradio as gr
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.dynamic_module_utils import get_class_from_dynamic_module


LONGEST_INPUT = 300  # characters

# End of the class's name -> Auto class that loads it.
AUTO_CLASSES = {
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "ForCausalLM": "AutoModelForCausalLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForQuestionAnswering": "AutoModelForQuestionAnswering",
}


@dataclass
class Loaded:
    """A model with its tokenizer. `name` tells nothing of where it lies; `head` is a key of `AUTO_CLASSES`."""

    name: str
    head: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load(source: str) -> Loaded:
    """A model from a folder or the Hub, in evaluation mode. Only the eager form of attention returns its weights.

    Raises:
        FileNotFoundError: there is no such folder. A name on the Hub is one of an owner and one of a model.
        ValueError: it has no head that the demo can show.
    """
    path = Path(source)
    if not path.is_dir() and (len(path.parts) != 2 or path.parent.is_dir()):
        raise FileNotFoundError(f"{source}: there is no such folder. Train a model first with: make quickstart")
    config = AutoConfig.from_pretrained(source, trust_remote_code=True)
    architecture = (config.architectures or ["none"])[0]
    head = next((head for head in AUTO_CLASSES if architecture.endswith(head)), None)
    if head is None:
        raise ValueError(
            f"{source} holds a model of class {architecture}; its name must end in one of: {list(AUTO_CLASSES)}."
        )
    # Not by the Auto class, which would prefer this project's own classes to the code beside the weights.
    model_class = get_class_from_dynamic_module(config.auto_map[AUTO_CLASSES[head]], source)
    model = model_class.from_pretrained(source, attn_implementation="eager").eval()
    return Loaded(path.name, head, model, AutoTokenizer.from_pretrained(source, trust_remote_code=True))


def check_text(text: str, purpose: str) -> str:
    """The text without space around it; in plain words what is wrong, if it is empty or too long."""
    text = text.strip()
    if not text:
        raise gr.Error(f"Please type something {purpose}.")
    if len(text) > LONGEST_INPUT:
        raise gr.Error(f"Please keep to {LONGEST_INPUT} characters; this text has {len(text)}.")
    return text


def warn_of_unknown_letters(loaded: Loaded, text: str) -> bool:
    """Tell the reader when most letters are of a script that training never had: no token holds one of them whole.

    Returns:
        Whether it was so.
    """
    ids = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
    known = "".join(loaded.tokenizer.decode([i], skip_special_tokens=True) for i in ids)
    unknown = 2 * sum(map(str.isalpha, known)) < sum(map(str.isalpha, text))
    if unknown:
        gr.Warning("The model has never seen most of these letters, so what it says about them means nothing.")
    return unknown


def token_name(loaded: Loaded, i: int) -> str:
    """A token as a reader sees it, in quotes; one that is a part of a character, which has no text, by its name."""
    text = loaded.tokenizer.decode([i])
    return loaded.tokenizer.convert_ids_to_tokens(i) if "\ufffd" in text else repr(text)
