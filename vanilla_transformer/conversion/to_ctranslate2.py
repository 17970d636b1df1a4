"""Convert models to CTranslate2, which is faster than PyTorch on a CPU and supports int8.

Load translators as a `ctranslate2.Translator`, language models as a `ctranslate2.Generator`, and encoders as a
`ctranslate2.Encoder`, which returns the last hidden states.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from ctranslate2.converters import Converter, utils
from ctranslate2.specs import attention_spec, common_spec, model_spec, transformer_spec
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.modeling_vanilla_transformer import (
    AddAndNorm,
    DecoderLayer,
    MultiHeadAttention,
    TransformerStack,
)


ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "gelu_new": common_spec.Activation.GELUTanh,
    "gelu_pytorch_tanh": common_spec.Activation.GELUTanh,
    "silu": common_spec.Activation.SWISH,
    "swish": common_spec.Activation.SWISH,
}


def check_config(config: PreTrainedConfig) -> None:
    """Raise a ValueError if CTranslate2's Transformer does not support a field of the config."""
    usual = config.d_model // config.num_heads
    if config.d_model % config.num_heads or (config.d_k, config.d_v) != (usual, usual):
        raise ValueError(f"d_k={config.d_k}, d_v={config.d_v}: CTranslate2's heads are d_model / num_heads = {usual}.")
    if config.activation_function not in ACTIVATIONS:
        raise ValueError(
            f"activation_function={config.activation_function!r} must be one of: {', '.join(ACTIVATIONS)}."
        )
    if config.sliding_window is not None:
        raise ValueError(f"sliding_window={config.sliding_window}: CTranslate2's encoder attends to everything.")


class ModelConverter(Converter):
    """Converts a model to CTranslate2's specification of a Transformer.

    Positions of any kind become a table of `max_position_embeddings` rows, which limits the sequence length.

    Raises:
        ValueError: CTranslate2's Transformer does not support a field of the config.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        check_config(model.config)
        self.model, self.tokenizer, self.config = cast(Any, model), tokenizer, model.config
        known = {i: token for token, i in tokenizer.get_vocab().items()}
        self.tokens = self.vocabulary(known, self.config.vocab_size)
        # FSMT and some Marian tokenizers have two vocabularies
        if isinstance(target := getattr(tokenizer, "decoder", None), dict):
            known = known | target
        target_size = getattr(self.config, "target_vocab_size", None) or self.config.vocab_size
        self.target_tokens = self.vocabulary(known, target_size)

    def vocabulary(self, known: dict[int, str], size: int) -> list[str]:
        """Return the token of each id, or a placeholder such as <unused7> if there is none."""
        return [known.get(i) or self.unlisted(i) or f"<unused{i}>" for i in range(size)]

    def unlisted(self, i: int) -> str | None:
        """Return a token that is missing from the tokenizer's vocabulary, such as a language code of M2M100."""
        if i >= len(self.tokenizer):
            return None
        token = cast(str | None, self.tokenizer.convert_ids_to_tokens(i))
        return token if token is not None and self.tokenizer.convert_tokens_to_ids(token) == i else None

    def _load(self) -> model_spec.ModelSpec:
        spec, tokenizer = self.make_spec(), self.tokenizer
        spec.config.layer_norm_epsilon = self.config.layer_norm_eps
        if self.config.is_encoder_decoder:
            spec.register_source_vocabulary(self.tokens)
            spec.register_target_vocabulary(self.target_tokens)
            spec.config.decoder_start_token = self.target_tokens[self.config.decoder_start_token_id]
        else:
            spec.register_vocabulary(self.tokens)
        # CTranslate2 needs all three tokens, but byte-level tokenizers have no unknown token, and GPT-1's tokenizer
        # has only an unknown token.
        for name in ("bos_token", "eos_token", "unk_token"):
            names = (getattr(tokenizer, name), tokenizer.pad_token, tokenizer.unk_token, tokenizer.eos_token)
            setattr(spec.config, name, next(filter(None, names), self.tokens[0]))
        if self.model.can_generate():  # the tokenizers of BERT and FSMT have another end token, or none
            end = self.model.generation_config.eos_token_id
            end = self.config.eos_token_id if end is None else end
            end = end[0] if isinstance(end, list) else end
            if end is not None:
                spec.config.eos_token = self.target_tokens[end]
        return spec

    def make_spec(self) -> model_spec.ModelSpec:
        """Return the specification for the model's family, with all weights."""
        config, model, body = self.config, self.model, self.model.base_model
        options = {
            "num_heads": config.num_heads,
            "pre_norm": config.norm_position == "pre",
            "activation": ACTIVATIONS[config.activation_function],
            "layernorm_embedding": config.normalize_embedding,
        }
        if config.is_encoder_decoder:
            depths = (config.encoder_layers, config.decoder_layers)
            spec = transformer_spec.TransformerSpec.from_config(depths, **options)
            self.fill_stack(spec.encoder, body.encoder)
            self.fill_stack(spec.decoder, body.decoder)
        elif model.can_generate():
            spec = transformer_spec.TransformerDecoderModelSpec.from_config(config.num_layers, **options)
            self.fill_stack(spec.decoder, body)
        else:
            encoder = transformer_spec.TransformerEncoderSpec(config.num_layers, **options)
            spec = transformer_spec.TransformerEncoderModelSpec(encoder)
            self.fill_stack(spec.encoder, body)
        if model.can_generate():
            self.fill_linear(spec.decoder.projection, model.lm_head)
        return spec

    def fill_stack(self, spec: model_spec.LayerSpec, stack: TransformerStack) -> None:
        """Copy the weights of an encoder or decoder: embeddings, positions, layers and norms."""
        embeddings = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
        embeddings.weight = self.array(stack.embed_tokens.weight)
        spec.scale_embeddings = stack.embed_scale
        indices = torch.arange(self.config.max_position_embeddings)[None] + self.config.position_offset
        positions = stack.embed_positions(indices)[0]
        if (types := getattr(stack, "embed_types", None)) is not None:  # give all tokens type 0
            positions = positions + types.weight[0] * stack.embed_scale
        spec.position_encodings.encodings = self.array(positions)
        if self.config.normalize_embedding:
            self.fill_norm(spec.layernorm_embedding, cast(nn.LayerNorm, stack.embed_norm))
        if self.config.norm_position == "pre":
            self.fill_norm(spec.layer_norm, cast(nn.LayerNorm, stack.norm))
        layers = cast(Iterable[DecoderLayer], stack.layers)  # encoder-only and decoder-only layers have no cross_attn
        for layer_spec, layer in zip(spec.layer, layers, strict=True):
            self.fill_attention(layer_spec.self_attention, layer.self_attn, layer.self_attn_add_norm)
            if hasattr(layer, "cross_attn"):
                self.fill_attention(layer_spec.attention, layer.cross_attn, layer.cross_attn_add_norm)
            self.fill_linear(layer_spec.ffn.linear_0, layer.feed_forward.fc1)
            self.fill_linear(layer_spec.ffn.linear_1, layer.feed_forward.fc2)
            self.fill_norm(layer_spec.ffn.layer_norm, layer.feed_forward_add_norm.norm)

    def fill_attention(
        self, spec: attention_spec.MultiHeadAttentionSpec, attention: MultiHeadAttention, add_norm: AddAndNorm
    ) -> None:
        """Copy an attention block. CTranslate2 fuses projections with the same input: Q, K and V, or K and V."""
        projections = [common_spec.LinearSpec() for _ in range(3)]
        for projection, name in zip(projections, ("q_proj", "k_proj", "v_proj"), strict=True):
            self.fill_linear(projection, getattr(attention, name))
        fused = [projections] if len(spec.linear) == 2 else [projections[:1], projections[1:]]
        for linear_spec, parts in zip(spec.linear, fused, strict=False):
            utils.fuse_linear(linear_spec, parts)
        self.fill_linear(spec.linear[-1], attention.o_proj)
        self.fill_norm(spec.layer_norm, add_norm.norm)

    def fill_linear(self, spec: common_spec.LinearSpec, linear: nn.Linear) -> None:
        """Copy the weight (outputs, inputs) and, if there is one, the bias of a linear layer."""
        spec.weight = self.array(linear.weight)
        if linear.bias is not None:
            spec.bias = self.array(linear.bias)

    def fill_norm(self, spec: common_spec.LayerNormSpec, norm: nn.LayerNorm) -> None:
        """Copy the weight and bias of a layer norm."""
        spec.gamma, spec.beta = self.array(norm.weight), self.array(norm.bias)

    @staticmethod
    def array(tensor: torch.Tensor) -> np.ndarray:
        """Return the tensor in the form that CTranslate2 requires: float32, on the CPU."""
        return tensor.detach().float().cpu().numpy()


def export_ctranslate2(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, quantization: str | None
) -> None:
    """Write model.bin, the config and the vocabulary into a new folder.

    Raises:
        ValueError: CTranslate2's Transformer does not support a field of the config.
    """
    ModelConverter(model, tokenizer).convert(str(folder), quantization=quantization)
