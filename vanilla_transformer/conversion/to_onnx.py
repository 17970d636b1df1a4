"""Export models as ONNX graphs with dynamic batch size and length. Decoders take and return a key-value cache.

    model.onnx      encoders: input_ids, attention_mask -> outputs of the head
                    language models: also past.N.key and past.N.value -> logits, present.N.key, present.N.value
    encoder.onnx    translators: input_ids, attention_mask -> cross.N.key, cross.N.value of each decoder layer
    decoder.onnx    translators: input_ids, past..., encoder_attention_mask, cross... -> logits, present...

In the first step, pass past keys and values of length 0.
"""

from pathlib import Path
from typing import Any, cast

import onnxscript  # noqa: F401  # torch.onnx needs it: fail early if it is missing
import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.utils import ModelOutput


Caches = list[Tensor]  # [key, value] of layer 0, then of layer 1, ..., each (batch, heads, length, width)


def pairs(tensors: Caches) -> list[tuple[Tensor, Tensor]]:
    """Group the flat list of a graph's inputs into (key, value) pairs, one per layer."""
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def flat(cache: DynamicCache) -> Caches:
    """Flatten the keys and values of a cache into the list of a graph's outputs."""
    return [tensor for layer in cast(Any, cache.layers) for tensor in (layer.keys, layer.values)]


def cache_names(kind: str, layers: int) -> list[str]:
    """Return names of keys and values, such as past.0.key, in the order of `flat`."""
    return [f"{kind}.{layer}.{part}" for layer in range(layers) for part in ("key", "value")]


class LanguageModel(nn.Module):
    """Language model that takes and returns its cache as tensors."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, past: Caches) -> tuple[Tensor, ...]:
        """Map ids (batch, new), mask (batch, past + new) and cache to logits (batch, new, vocab) and the new cache."""
        cache = DynamicCache(pairs(past))
        output = self.model(input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
        return (output.logits, *flat(cache))


class TranslatorEncoder(nn.Module):
    """Encoder that also computes the keys and values of the decoder's cross-attention, once per sentence."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.encoder, self.layers = model.model.encoder, model.model.decoder.layers

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Map ids and mask (batch, source) to key and value (batch, heads, source, width) of each decoder layer."""
        states = self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        return tuple(tensor for layer in self.layers for tensor in layer.cross_attn.keys_and_values(states))


class TranslatorDecoder(nn.Module):
    """Decoder that takes the keys and values of the source instead of the encoder's output."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.decoder, self.lm_head, self.d_model = model.model.decoder, model.lm_head, model.config.d_model

    def forward(
        self, input_ids: Tensor, past: Caches, encoder_attention_mask: Tensor, cross: Caches
    ) -> tuple[Tensor, ...]:
        """Map ids (batch, new) and both caches to logits (batch, new, vocab) and the new self-attention cache."""
        cache = EncoderDecoderCache(DynamicCache(pairs(past)), DynamicCache(pairs(cross)))
        # Mark the cross-attention cache of each layer as complete, so that it is not computed again.
        cache.is_updated = dict.fromkeys(range(len(self.decoder.layers)), True)
        batch, source_length = encoder_attention_mask.shape
        states = self.decoder(
            input_ids,
            # only the shape of these states is used
            encoder_hidden_states=cross[0].new_zeros(batch, source_length, self.d_model),
            encoder_attention_mask=encoder_attention_mask,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        return (self.lm_head(states), *flat(cache.self_attention_cache))


class Encoder(nn.Module):
    """Encoder with or without a head. Token types are a named argument, as `torch.export` requires."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> ModelOutput:
        """Map ids, mask and token types, each (batch, length), to the outputs of the model."""
        return self.model(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)


def write_graph(module: nn.Module, file: Path, inputs: dict[str, Any], output_names: list[str]) -> None:
    """Trace the module with keyword arguments `inputs`, and write an ONNX file with dynamic batch size and length."""
    names: list[str] = []
    free: dict[str, Any] = {}
    for name, value in inputs.items():
        if isinstance(value, list):  # keys and values: (batch, heads, length, width)
            names += cache_names(name, len(value) // 2)
            free[name] = [dict.fromkeys((0, 2), Dim.DYNAMIC) for _ in value]
        else:
            names.append(name)
            free[name] = dict.fromkeys((0, 1), Dim.DYNAMIC)
    program = torch.onnx.export(
        module.eval(),
        kwargs=inputs,
        dynamic_shapes=free,
        input_names=names,
        output_names=output_names,
        dynamo=True,
        verbose=False,
    )
    assert program is not None  # only None with dynamo=False
    program.save(file)


def empty_caches(model: PreTrainedModel, layers: int, length: int, batch: int = 2) -> Caches:
    """Return zero keys (batch, num_heads, length, d_k) and values (..., d_v) for each layer, for tracing."""
    config = model.config
    widths = (config.d_k, config.d_v) * layers
    return [torch.zeros(batch, config.num_heads, length, width) for width in widths]


@torch.no_grad()
def export_onnx(model: PreTrainedModel, folder: Path) -> None:
    """Write the ONNX graphs into a new folder.

    Raises:
        ValueError: the model has a sliding window, whose number of blocks depends on the length.
    """
    config = model.config
    if config.sliding_window is not None:
        raise ValueError(f"sliding_window={config.sliding_window}: a graph with free lengths cannot hold it.")
    folder.mkdir()
    # Trace with different lengths, so that the exporter does not treat any two of them as equal.
    new, past = torch.full((2, 5), 3), 2
    source = {"input_ids": torch.full((2, 7), 3), "attention_mask": torch.ones(2, 7, dtype=torch.long)}
    if config.is_encoder_decoder:
        layers = config.decoder_layers
        write_graph(TranslatorEncoder(model), folder / "encoder.onnx", source, cache_names("cross", layers))
        inputs = {
            "input_ids": new,
            "past": empty_caches(model, layers, past),
            "encoder_attention_mask": source["attention_mask"],
            "cross": empty_caches(model, layers, length=7),
        }
        outputs = ["logits", *cache_names("present", layers)]
        write_graph(TranslatorDecoder(model), folder / "decoder.onnx", inputs, outputs)
    elif model.can_generate():
        # The mask covers 7 tokens: 2 in the cache and 5 new ones.
        inputs = source | {"input_ids": new, "past": empty_caches(model, config.num_layers, past)}
        outputs = ["logits", *cache_names("present", config.num_layers)]
        write_graph(LanguageModel(model), folder / "model.onnx", inputs, outputs)
    else:
        if config.type_vocab_size:
            source["token_type_ids"] = torch.zeros_like(source["input_ids"])
        write_graph(Encoder(model), folder / "model.onnx", source, list(model(**source)))
