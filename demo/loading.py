"""Saved models for the demo, through the Auto classes and with the code that lies beside their weights."""

from dataclasses import dataclass
from pathlib import Path

import gradio as gr
import transformers
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase


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
        ValueError: it has no head that the demo can show.
    """
    config = AutoConfig.from_pretrained(source, trust_remote_code=True)
    architecture = (config.architectures or ["none"])[0]
    head = next((head for head in AUTO_CLASSES if architecture.endswith(head)), None)
    if head is None:
        raise ValueError(
            f"{source} holds a model of class {architecture}; its name must end in one of: {list(AUTO_CLASSES)}."
        )
    auto_class = getattr(transformers, AUTO_CLASSES[head])
    model = auto_class.from_pretrained(source, trust_remote_code=True, attn_implementation="eager").eval()
    return Loaded(Path(source).name, head, model, AutoTokenizer.from_pretrained(source, trust_remote_code=True))


def check_text(text: str, purpose: str) -> str:
    """The text without space around it; in plain words what is wrong, if it is empty or too long."""
    text = text.strip()
    if not text:
        raise gr.Error(f"Please type something {purpose}.")
    if len(text) > LONGEST_INPUT:
        raise gr.Error(f"Please keep to {LONGEST_INPUT} characters; this text has {len(text)}.")
    return text
