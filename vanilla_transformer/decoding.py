"""Translate or continue texts with a saved model, in batches."""

from typing import Any, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline_vanilla_transformer import EXTRA_TOKENS, longest_output


def paper_decoding(num_beams: int = 4, length_penalty: float = 0.6) -> dict:
    """Generation options of section 6.1: beam search with the length penalty of Wu et al. (2016), which stops when
    no unfinished hypothesis can win ("terminate early when possible").

    A single beam has no use for either: its options take back those of a beam search, which a saved model may have.
    """
    if num_beams == 1:
        return {"num_beams": 1, "length_penalty": 1.0, "early_stopping": False, "gnmt_length_penalty": False}
    beam_options = {"num_beams": num_beams, "length_penalty": length_penalty, "early_stopping": "never"}
    return beam_options | {"gnmt_length_penalty": True}


def decode_like_the_paper(model: PreTrainedModel, num_beams: int = 4, length_penalty: float = 0.6) -> None:
    """Make `paper_decoding` the model's own way to generate, which is saved with it.

    Raises:
        ValueError: the model's generation has no such option, so that it would be left out in silence.
    """
    unknown = model.generation_config.update(**paper_decoding(num_beams, length_penalty))
    if unknown:
        raise ValueError(f"{type(model).__name__} does not know how to generate with: {', '.join(unknown)}.")


@torch.inference_mode()
def translate(
    texts: list[str],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    extra_tokens: int = EXTRA_TOKENS,
    **generate_options,
) -> list[str]:
    """Translate a batch of texts; outputs have at most `extra_tokens` more tokens than the longest input.

    As in training, the name of a special token in a text, such as "</s>", is text.
    """
    batch = tokenizer(texts, return_tensors="pt", padding=True, split_special_tokens=True).to(model.device)
    max_length = longest_output(model.config, batch["input_ids"].shape[1], extra_tokens)
    output = cast(Any, model).generate(**batch, **({"max_length": max_length} | generate_options))
    return tokenizer.batch_decode(output, skip_special_tokens=True)


@torch.inference_mode()
def continue_text(
    prompts: list[str], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **generate_options
) -> list[str]:
    """Continue a batch of prompts; the prompt is part of each result, and its "</s>" is text, as in training."""
    batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", split_special_tokens=True).to(
        model.device
    )
    output = cast(Any, model).generate(**batch, **generate_options)
    return tokenizer.batch_decode(output, skip_special_tokens=True)


def token_text(tokenizer: PreTrainedTokenizerBase, i: int) -> str:
    """The text of one token within others: with its space, which some tokenizers take away where a text begins."""
    text = str(tokenizer.decode([i]))
    return f" {text}" if tokenizer.decode([i, i]) == f"{text} {text}" else text
