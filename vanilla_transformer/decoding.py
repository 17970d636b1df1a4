"""Translate inputs or continue prompts with a saved model, in batches."""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.pipeline_vanilla_transformer import (
    EXTRA_TOKENS,
    TranslationPipeline,
    is_blank,
    longest_input,
    longest_output,
)


logger = logging.getLogger(__name__)
WINDOW = 16  # number of batches within which inputs are sorted by length


def paper_decoding(num_beams: int = 4, length_penalty: float = 0.6) -> dict:
    """Return the generation options of section 6.1 of the paper.

    These are beam search with the length penalty of Wu et al. (2016), stopped once no unfinished hypothesis can win
    ("terminate early when possible"). For a single beam, they reset any beam search options of a saved model.
    """
    if num_beams == 1:
        return {"num_beams": 1, "length_penalty": 1.0, "early_stopping": False, "gnmt_length_penalty": False}
    beam_options = {"num_beams": num_beams, "length_penalty": length_penalty, "early_stopping": "never"}
    return beam_options | {"gnmt_length_penalty": True}


def set_paper_decoding(model: PreTrainedModel, num_beams: int = 4, length_penalty: float = 0.6) -> None:
    """Apply `paper_decoding` to the model's generation config, which is saved with the model.

    Raises:
        ValueError: the model's `generate` does not support one of the options and would ignore it.
    """
    unknown = model.generation_config.update(**paper_decoding(num_beams, length_penalty))
    if unknown:
        raise ValueError(f"{type(model).__name__} does not know how to generate with: {', '.join(unknown)}.")


def translate(
    texts: list[str],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    extra_tokens: int = EXTRA_TOKENS,
    **options,
) -> list[str]:
    """Translate a batch of inputs. Outputs may be up to `extra_tokens` tokens longer than the longest input.

    Args:
        options: options of `TranslationPipeline` and `generate`.
    """
    # None if accelerate has already placed the model on devices
    device = None if getattr(model, "hf_device_map", None) else model.device
    pipeline = TranslationPipeline(model=model, tokenizer=tokenizer, device=device)
    records = pipeline(texts, batch_size=len(texts), extra_tokens=extra_tokens, **options)
    return [record["translation_text"] for record in records]


@torch.inference_mode()
def continue_text(
    prompts: list[str],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    truncation: bool = False,
    **generate_options,
) -> list[str]:
    """Continue a batch of prompts, and return each prompt with its continuation.

    As in training, "</s>" in a prompt is ordinary text.

    With learned position embeddings, `max_new_tokens` is limited to the positions left after the longest prompt.

    Args:
        truncation: truncate each prompt that reaches the model's maximum input length to its last tokens, keeping half
            of that length.

    Raises:
        ValueError: a prompt uses all learned position embeddings, so it cannot be continued.
    """
    # GPT and GPT-2 have no padding token. Any token can be used, because the attention mask hides it.
    others = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    padding = next((token for token in others if token is not None), 0)
    # An empty prompt needs at least one token, but GPT and GPT-2 have no start token.
    first = padding if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    rows = [row or [first] for row in tokenizer(prompts, split_special_tokens=True, verbose=False)["input_ids"]]
    if truncation:
        limit = longest_input(tokenizer, model.config)
        rows = [row if len(row) < limit else row[-max(1, limit // 2) :] for row in rows]
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    asked = max(1, generate_options.get("max_new_tokens") or 1)  # `generate` rejects values below 1
    left = longest_output(getattr(model, "config", None), longest, asked) - longest
    if left < 1:
        prompt = prompts[lengths.index(longest)]
        raise ValueError(
            f"The prompt {prompt[:60]!r} has {longest} tokens, and the model {model.config.max_position_embeddings} "
            "positions, so none is left to continue it: give a shorter prompt."
        )
    ids = torch.tensor([[padding] * (longest - len(row)) + row for row in rows])
    mask = torch.arange(longest) >= longest - torch.tensor(lengths)[:, None]
    options = {"pad_token_id": padding} | generate_options | ({"max_new_tokens": left} if left < asked else {})
    output = cast(Any, model).generate(ids.to(model.device), attention_mask=mask.long().to(model.device), **options)
    each = len(output) // len(rows)  # more than 1 with `num_return_sequences`
    written = [row[longest - lengths[i // each] :] for i, row in enumerate(output.tolist())]
    return tokenizer.batch_decode(written, skip_special_tokens=True)


def warn_long_lines(texts: list[str], tokenizer: PreTrainedTokenizerBase, limit: int, kept: str) -> None:
    """Warn about each line with more than `limit` tokens. `kept` describes the tokens that are kept ("first 512")."""
    for number, text in enumerate(texts, start=1):
        if 2 * len(text.encode()) < limit:  # assume at most two tokens per byte, to skip tokenizing short lines
            continue
        length = len(tokenizer(text, split_special_tokens=True, verbose=False)["input_ids"])
        if length > limit:
            logger.warning("Line %d has %d tokens, and is truncated to the %s.", number, length, kept)


def map_by_length(
    function: Callable[[list[str]], Iterable[str]], texts: list[str], batch_size: int, description: str
) -> Iterator[str]:
    """Apply `function` to batches of inputs of similar length, and yield results in input order as soon as possible.

    Inputs are sorted by length within windows of 16 batches. The result of a blank input is an empty string.
    """
    with tqdm(total=len(texts), desc=description, file=sys.stderr, disable=None, delay=2) as progress:
        for start in range(0, len(texts), WINDOW * batch_size):
            window = texts[start : start + WINDOW * batch_size]
            results = {row: "" for row, text in enumerate(window) if is_blank(text)}
            order = sorted(set(range(len(window))) - results.keys(), key=lambda row: len(window[row]), reverse=True)
            batches = sorted((order[i : i + batch_size] for i in range(0, len(order), batch_size)), key=min)
            for row in range(len(window)):
                while row not in results:  # the next batch contains the first row without a result
                    rows = batches.pop(0)
                    results |= zip(rows, function([window[row] for row in rows]), strict=True)
                yield results[row]
                progress.update()


def token_text(tokenizer: PreTrainedTokenizerBase, i: int) -> str:
    """Return a token's text with its leading space, which some tokenizers strip at the start of a sequence."""
    text = str(tokenizer.decode([i]))
    return f" {text}" if i not in tokenizer.all_special_ids and tokenizer.decode([i, i]) == f"{text} {text}" else text
