"""Translate or continue texts with a saved model, in batches."""

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase


# Section 6.1: beam size 4, length penalty 0.6 (in the form of Wu et al., 2016), output at most input length + 50,
# "terminate early when possible" (as soon as no unfinished beam can win).
PAPER_DECODING = {"num_beams": 4, "length_penalty": 0.6, "early_stopping": "never", "gnmt_length_penalty": True}
EXTRA_TOKENS = 50


@torch.inference_mode()
def translate(
    texts: list[str],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    extra_tokens: int = EXTRA_TOKENS,
    **generate_options,
) -> list[str]:
    """Translate a batch of texts; outputs have at most `extra_tokens` more tokens than the longest input."""
    batch = tokenizer(texts, return_tensors="pt", padding=True).to(model.device)
    max_length = batch["input_ids"].shape[1] + extra_tokens
    output = model.generate(**batch, **({"max_length": max_length} | generate_options))
    return tokenizer.batch_decode(output, skip_special_tokens=True)


@torch.inference_mode()
def continue_text(
    prompts: list[str], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **generate_options
) -> list[str]:
    """Continue a batch of prompts; the prompt is part of each result."""
    batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left").to(model.device)
    output = model.generate(**batch, **generate_options)
    return tokenizer.batch_decode(output, skip_special_tokens=True)
