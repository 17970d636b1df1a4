"""Build tiny models of the three families."""

import torch

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerDecoderConfig,
    VanillaTransformerEncoderConfig,
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForMaskedLM,
)


VOCAB = 50
SIZES = {"vocab_size": VOCAB, "d_model": 32, "num_heads": 4, "d_ff": 64}


def encoder_decoder(**fields):
    config = VanillaTransformerConfig(**(SIZES | {"encoder_layers": 2, "decoder_layers": 2} | fields))
    return VanillaTransformerForConditionalGeneration(config).eval()


def decoder_only(**fields):
    return VanillaTransformerForCausalLM(
        VanillaTransformerDecoderConfig(**(SIZES | {"num_layers": 2} | fields))
    ).eval()


def encoder_only(model_class=VanillaTransformerForMaskedLM, **fields):
    return model_class(VanillaTransformerEncoderConfig(**(SIZES | {"num_layers": 2} | fields))).eval()


def tokens(batch: int = 2, length: int = 7) -> torch.Tensor:
    return torch.randint(3, VOCAB, (batch, length))


def right_padded(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random right-padded ids and their mask, both (len(lengths), max(lengths))."""
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return tokens(len(lengths), max(lengths)) * mask, mask
