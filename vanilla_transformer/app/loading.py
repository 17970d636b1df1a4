"""Describe saved models for the page, and load them when they are first used.

A description needs neither PyTorch nor transformers, so that the demo listens before they are imported.
"""

import re
from functools import cached_property
from pathlib import Path
from textwrap import shorten
from threading import RLock
from typing import TYPE_CHECKING, Any

from huggingface_hub import hf_hub_download, metadata_load
from yaml import YAMLError

from vanilla_transformer.files import check_source, read_settings
from vanilla_transformer.inside.markup import MOST_BYTES


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LONGEST_INPUT = 300  # maximum number of characters in an example
MASK, BLANK = "<mask>", "___"
PREFIX = "VanillaTransformer"
TASKS = {
    "ForConditionalGeneration": "translate",
    "ForCausalLM": "generate",
    "ForMaskedLM": "fill",
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "tag",
    "ForQuestionAnswering": "answer",
}
PAGE_FILES = ("config.json", "tokenizer.json", "model.safetensors", "generation_config.json")  # what the page may read
TEXT = "The tank holds 3 liters at 54°C. The parcel from Kenya weighs 7.7 ounces and arrived 98 months ago."
# Example texts by task, for models whose model card has none
EXAMPLES = {
    "translate": ["I like to travel.", "Where is the station?", "Wednesday, July 4, 2029", "12 kilometers or 3 miles"],
    "generate": ["I would like to", "Tom has never been", "The parcel from"],
    "fill": [
        f"The parcel from Kenya {BLANK} 7.7 ounces.",
        f"Sales rose by 16% and will be counted again in 50 {BLANK}.",
        f"The flight to Peru {BLANK} on Wednesday.",
    ],
    "classify": ["Wednesday, July 4, 2029", "12 kilómetros o 3 millas", "il y a trois heures", "5 घंटे पहले"],
    "estimate": ["81 sec", "89 hours and 44 minutes", "7 years"],
    "tag": [
        "The parcel from Kenya weighs 7.7 ounces and arrived 98 months ago.",
        "The flight to Peru leaves on Wednesday, January 19, 2028 at 1:56 AM and costs 7.87 Mexican pesos.",
        "Sales rose by 16% and will be counted again in 50 weeks.",
    ],
    "answer": ["How warm is the tank?", "Where does the parcel come from?"],  # questions about TEXT
}


class DemoModel:
    """A saved model with its tokenizer and example texts. Its weights are loaded when they are first used.

    Attributes:
        name: name of the model's folder, without the path.
        task: verb for the model's task.
        estimates: whether the model predicts numeric values (regression).
        knows: what the model knows, by its model card; None if the card does not say.
        examples: example inputs, each with a "text" and, for question answering, a "context".
    """

    def __init__(self, source: str, trust_remote_code: bool = False):
        """Read the config and the model card.

        Args:
            source: folder of the model, or its name on the Hub.
            trust_remote_code: run the code in the model folder instead of the installed classes.

        Raises:
            FileNotFoundError: the folder does not exist.
            ValueError: it is not a VanillaTransformer model, has no task head, or has a damaged config.
        """
        check_source(source)
        self.source, self.trust_remote_code = source, trust_remote_code
        self.name = Path(source).name
        self.lock = RLock()
        settings = read_settings(self.file("config.json"))
        (architecture, *_) = settings.get("architectures") or ["none"]
        self.task = TASKS.get(architecture.removeprefix(PREFIX), "")
        if not self.task or not architecture.startswith(PREFIX):
            self.task = self.find_task()
        labels = settings.get("id2label")
        is_single = isinstance(labels, dict) and len(labels) == 1
        kind = settings.get("problem_type") or ("regression" if is_single else None)
        self.estimates = self.task == "classify" and kind == "regression"
        card = self.card()
        knows = card.get("knows")
        self.knows = knows if isinstance(knows, str) else None
        self.examples = self.examples_of(card)

    def __str__(self) -> str:
        return self.source

    def find_task(self) -> str:
        """Return the task of a model whose class has an unknown name.

        Raises:
            ValueError: the model has no task head, or another architecture.
        """
        from vanilla_transformer.inside.predictions import prediction_class

        return prediction_class(self.model).task

    def file(self, name: str) -> Path:
        """Return the path of a file of the model, downloading it if the model is on the Hub.

        Raises:
            OSError: the file does not exist, or the Hub cannot be reached.
        """
        if Path(self.source).is_dir():
            return Path(self.source, name)
        return Path(hf_hub_download(self.source, name))

    def card(self) -> dict[str, Any]:
        """Return the metadata of the model card; none if they cannot be read."""
        try:
            return metadata_load(self.file("README.md")) or {}
        except (OSError, ValueError, YAMLError):
            return {}

    def examples_of(self, card: dict[str, Any]) -> list[dict[str, str]]:
        """Return example inputs from the model card; without any, from the training run; otherwise the defaults."""
        if self.task == "answer":
            return [{"text": question, "context": TEXT} for question in EXAMPLES["answer"]]
        widgets = card.get("widget")
        widgets = [widget for widget in widgets if isinstance(widget, dict)] if isinstance(widgets, list) else []
        texts = [text for widget in widgets if isinstance(text := widget.get("text"), str)]
        texts = [text for text in texts if 0 < len(text) <= LONGEST_INPUT]
        if self.task == "fill":
            texts = [blanked for text in texts if BLANK in (blanked := text.replace(MASK, BLANK))]
        texts = texts or self.examples_of_run()
        return [{"text": text} for text in texts or EXAMPLES["estimate" if self.estimates else self.task]]

    def examples_of_run(self) -> list[str]:
        """Return inputs with different targets from the examples that training has written beside the model."""
        file = Path(self.source, "examples.md")
        if self.task not in ("translate", "classify", "tag") or not file.is_file():
            return []
        best = file.read_text(encoding="utf-8").partition("## The ten worst")[0]
        rows = re.findall(r"^\| (.+?) (?<!\\)\| (.+?) (?<!\\)\| ", best, re.MULTILINE)
        by_target: dict[str, str] = {}
        for source, target in rows[2:]:  # without the header
            by_target.setdefault(target, shorten(source.replace("\\|", "|"), 100, placeholder=""))
        return list(by_target.values())[:4]

    @cached_property
    def in_page(self) -> bool:
        """Whether the model is small enough to run in the page. The page checks whether it knows the config."""
        try:
            files = [self.file(name) for name in PAGE_FILES[:3]]
        except OSError:
            return False
        is_whole = all(file.is_file() for file in files)
        return is_whole and not self.trust_remote_code and files[2].stat().st_size <= MOST_BYTES

    def describe(self) -> dict[str, Any]:
        """Return what the page needs to offer the model."""
        return {
            "name": self.name,
            "task": self.task,
            "regression": self.estimates,
            "knows": self.knows,
            "examples": self.examples,
            "inPage": self.in_page,
        }

    @cached_property
    def loaded(self) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
        """The model, with eager attention, the only one that returns attention weights, and its tokenizer.

        Raises:
            ValueError: the model is damaged, or has no task head.
        """
        from vanilla_transformer.inside.predictions import prediction_class
        from vanilla_transformer.loading import load_model, load_tokenizer

        trusts = self.trust_remote_code
        model = load_model(self.source, trust_remote_code=trusts, attn_implementation="eager")
        prediction_class(model)  # check that there is a head
        return model, one_at_a_time(load_tokenizer(self.source, trusts))

    @property
    def model(self) -> "PreTrainedModel":
        """The model; loaded on first use."""
        with self.lock:
            return self.loaded[0]

    @property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The tokenizer; loaded on first use."""
        with self.lock:
            return self.loaded[1]


def one_at_a_time(tokenizer: "PreTrainedTokenizerBase") -> "PreTrainedTokenizerBase":
    """Add a lock to a tokenizer, because options such as `split_special_tokens` change its state for all threads."""
    kind, lock = type(tokenizer), RLock()

    def call(self, *texts, **options):
        with lock:
            return kind.__call__(self, *texts, **options)

    tokenizer.__class__ = type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
    return tokenizer
