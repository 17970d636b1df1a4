"""Load saved models and example texts for the demo."""

from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from huggingface_hub import metadata_load
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file
from yaml import YAMLError

from vanilla_transformer.inside.predictions import is_regression, task_of
from vanilla_transformer.inside.readings import BLANK
from vanilla_transformer.loading import load_model, load_tokenizer


LONGEST_INPUT = 300  # maximum number of characters in an example
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


@dataclass(eq=False)
class Loaded:
    """A model with its tokenizer.

    Args:
        name: name of the model's folder, without the path.
        task: verb for the model's task, see `task_of`.
        examples: example inputs, each with a "text" and, for question answering, a "context".
        engine: a `CTranslate2Translator` that runs the beam search instead of the model.
    """

    name: str
    task: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    examples: list[dict[str, str]]
    engine: Any = None

    @property
    def estimates(self) -> bool:
        """Whether the model predicts numeric values (regression)."""
        return self.task == "classify" and is_regression(self.model.config)


def load(
    source: str, trust_remote_code: bool = False, engine: str = "pytorch", quantization: str | None = None
) -> Loaded:
    """Load a model from a folder or the Hub with eager attention, the only one that returns attention weights.

    Args:
        trust_remote_code: run the code in the model folder instead of the installed classes.
        engine: beam search engine, "pytorch" or "ctranslate2".
        quantization: weight type of CTranslate2, such as "int8"; by default float32.

    Raises:
        FileNotFoundError: the folder does not exist.
        ValueError: it is not a VanillaTransformer model, has no task head, or is damaged.
        ImportError: CTranslate2 is requested but not installed.
    """
    model = load_model(source, trust_remote_code=trust_remote_code, attn_implementation="eager")
    tokenizer = one_at_a_time(load_tokenizer(source, trust_remote_code))
    loaded = Loaded(Path(source).name, task_of(model), model, tokenizer, [])
    if engine == "ctranslate2" and loaded.task == "translate":
        from vanilla_transformer.conversion.ctranslate2 import CTranslate2Translator  # an optional dependency

        loaded.engine = CTranslate2Translator(model, tokenizer, quantization)
    loaded.examples = examples_of(loaded, texts_of_card(source))
    return loaded


def one_at_a_time(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Add a lock to a tokenizer, because options such as `split_special_tokens` change its state for all threads."""
    kind, lock = type(tokenizer), Lock()

    def call(self, *texts, **options):
        with lock:
            return kind.__call__(self, *texts, **options)

    tokenizer.__class__ = type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
    return tokenizer


def texts_of_card(source: str) -> list[str]:
    """Return the example texts in the model card; none if they cannot be read."""
    try:
        metadata = metadata_load(cached_file(source, "README.md"))
    except (OSError, ValueError, YAMLError):
        return []
    widgets = (metadata or {}).get("widget")
    texts = [widget.get("text") for widget in widgets if isinstance(widget, dict)] if isinstance(widgets, list) else []
    return [text for text in texts if isinstance(text, str) and 0 < len(text) <= LONGEST_INPUT]


def examples_of(loaded: Loaded, texts: list[str]) -> list[dict[str, str]]:
    """Return the examples in the model card, which match the model's language, or the default ones."""
    if loaded.task == "answer":
        return [{"text": question, "context": TEXT} for question in EXAMPLES["answer"]]
    if loaded.task == "fill":
        texts = [text.replace(loaded.tokenizer.mask_token, BLANK) for text in texts]
        texts = [text for text in texts if BLANK in text]
    return [{"text": text} for text in texts or EXAMPLES["estimate" if loaded.estimates else loaded.task]]
