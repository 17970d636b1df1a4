"""Translate or continue texts with a saved model, in batches."""

from typing import Any, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.pipeline_vanilla_transformer import EXTRA_TOKENS, longest_output


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
    config = getattr(model, "config", None)  # a plain module that generates may have none
    max_length = longest_output(config, batch["input_ids"].shape[1], extra_tokens)
    output = cast(Any, model).generate(**batch, **({"max_length": max_length} | generate_options))
    return tokenizer.batch_decode(output, skip_special_tokens=True)


@torch.inference_mode()
def continue_text(
    prompts: list[str], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **generate_options
) -> list[str]:
    """Continue a batch of prompts; the prompt is part of each result, and its "</s>" is text, as in training.

    Where positions are learned, `max_new_tokens` is cut to what the longest prompt leaves.

    Raises:
        ValueError: a prompt takes all learned positions, so that none is left to continue it.
    """
    # GPT and GPT-2 have no padding token. Any other will do: the mask hides it, and the text begins behind it.
    others = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    padding = next((token for token in others if token is not None), 0)
    # Nor do they begin a text with a token, so an empty one would have nothing to read.
    first = padding if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    rows = [row or [first] for row in tokenizer(prompts, split_special_tokens=True)["input_ids"]]
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    asked = max(1, generate_options.get("max_new_tokens") or 1)  # below 1, the library says so
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
    each = len(output) // len(rows)  # above 1 with `num_return_sequences`
    written = [row[longest - lengths[i // each] :] for i, row in enumerate(output.tolist())]
    return tokenizer.batch_decode(written, skip_special_tokens=True)


def token_text(tokenizer: PreTrainedTokenizerBase, i: int) -> str:
    """The text of one token within others: with its space, which some tokenizers take away where a text begins."""
    text = str(tokenizer.decode([i]))
    return f" {text}" if tokenizer.decode([i, i]) == f"{text} {text}" else text
