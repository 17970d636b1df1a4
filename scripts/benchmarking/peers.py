"""Build the models to compare: ours, and peers of the same size for the same task."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    PreTrainedConfig,
    PreTrainedModel,
)
from x_transformers import Decoder, Encoder, TransformerWrapper

from benchmarking.results import OURS, PACKED
from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerDecoderConfig,
    VanillaTransformerEncoderConfig,
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForSequenceClassification,
)
from vanilla_transformer.fast import LOSS_CHUNK_SIZE, fast_products, make_fast
from vanilla_transformer.modeling_vanilla_transformer import sinusoids


@dataclass(frozen=True)
class Size:
    d_model: int
    d_ff: int
    num_heads: int
    layers: int
    vocab_size: int

    def fields(self, **layers: int) -> dict[str, int]:
        """Return the config fields of our models. The layer counts have different names in each config class."""
        sizes = {"d_model": self.d_model, "d_ff": self.d_ff, "num_heads": self.num_heads}
        return sizes | {"vocab_size": self.vocab_size} | layers


SIZES = {
    "small": Size(256, 1024, 4, 3, 8000),
    "base": Size(512, 2048, 8, 6, 37000),
    "big": Size(1024, 4096, 16, 6, 37000),
    "recipe": Size(128, 256, 4, 4, 5000),
    "language model": Size(128, 512, 4, 4, 65),
    "classifier": Size(256, 1024, 4, 4, 8000),
    "length": Size(256, 1024, 4, 2, 1000),
    "gpt": Size(768, 3072, 12, 12, 50304),  # nanoGPT's size
}
TOY = Size(32, 64, 4, 2, 300)
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` with one embedding shared by source, target and output, as in the paper."""

    def __init__(self, size: Size):
        super().__init__()
        # PyTorch's inference fast path fails under autocast on a CPU. The timings of training do not depend on it.
        torch.backends.mha.set_fastpath_enabled(False)
        self.embed = nn.Embedding(size.vocab_size, size.d_model)
        nn.init.normal_(self.embed.weight, std=size.d_model**-0.5)
        self.body = nn.Transformer(
            size.d_model, size.num_heads, size.layers, size.layers, size.d_ff, dropout=0.1, batch_first=True
        )
        for module in self.body.modules():  # the other models apply no dropout to attention weights and hidden units
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0
        self.dropout = nn.Dropout(0.1)

    def states(self, ids: Tensor) -> Tensor:
        d_model = self.embed.embedding_dim
        positions = sinusoids(torch.arange(ids.shape[1], device=ids.device)[None], d_model)
        return self.dropout(self.embed(ids) * d_model**0.5 + positions)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        target = shift(labels)
        padding = attention_mask == 0
        output = self.body(
            self.states(input_ids),
            self.states(target),
            tgt_mask=causal_mask(target),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return F.cross_entropy((output @ self.embed.weight.T).flatten(0, 1), labels.flatten())


class XTransformersTranslator(nn.Module):
    """Encoder-decoder from x-transformers with the options of the paper: post-norm, ReLU, one shared embedding."""

    def __init__(self, size: Size):
        super().__init__()
        layers = {
            "dim": size.d_model,
            "depth": size.layers,
            "heads": size.num_heads,
            "attn_dim_head": size.d_model // size.num_heads,
            "attn_flash": True,
            "ff_mult": size.d_ff / size.d_model,
            "pre_norm": False,
            "ff_custom_activation": nn.ReLU(),
            "attn_sublayer_dropout": 0.1,
            "ff_sublayer_dropout": 0.1,
        }
        around = {
            "num_tokens": size.vocab_size,
            "max_seq_len": 512,
            "scaled_sinu_pos_emb": True,
            "emb_dropout": 0.1,
        }
        self.encoder = TransformerWrapper(attn_layers=Encoder(**layers), return_only_embed=True, **around)
        self.decoder = TransformerWrapper(
            attn_layers=Decoder(cross_attend=True, **layers),
            token_emb=self.encoder.token_emb,
            tie_embedding=True,
            **around,
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        mask = attention_mask != 0
        states = self.encoder(input_ids, mask=mask, return_embeddings=True)
        logits = self.decoder(shift(labels), context=states, context_mask=mask)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class PlainBlock(nn.Module):
    """A pre-norm layer that projects queries, keys and values with one matrix."""

    def __init__(self, size: Size):
        super().__init__()
        self.num_heads = size.num_heads
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(size.d_model), nn.LayerNorm(size.d_model)
        self.qkv = nn.Linear(size.d_model, 3 * size.d_model)
        self.output = nn.Linear(size.d_model, size.d_model)
        self.feed_forward = nn.Sequential(
            nn.Linear(size.d_model, size.d_ff), nn.GELU(), nn.Linear(size.d_ff, size.d_model)
        )

    def forward(self, states: Tensor) -> Tensor:
        heads = self.qkv(self.attention_norm(states)).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # (batch, heads, length, head_width)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.output(attended.transpose(1, 2).flatten(2))
        return states + self.feed_forward(self.feed_forward_norm(states))


class PlainGPT(nn.Module):
    """A minimal language model similar to nanoGPT."""

    def __init__(self, size: Size, length: int):
        super().__init__()
        self.embed = nn.Embedding(size.vocab_size, size.d_model)
        self.positions = nn.Embedding(length, size.d_model)
        self.blocks = nn.Sequential(*(PlainBlock(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.d_model)
        for embedding in (self.embed, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        states = self.norm(self.blocks(self.embed(input_ids) + self.positions(positions)))
        logits = states @ self.embed.weight.T
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def shift(labels: Tensor) -> Tensor:
    """Return the decoder input: a start token, then all labels except the last."""
    return F.pad(labels, (1, 0), value=1)[:, :-1].clamp(min=0)


def causal_mask(ids: Tensor) -> Tensor:
    """Return the mask that `torch.nn.Transformer` expects: (length, length), True above the diagonal."""
    return torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).triu(1)


Makers = dict[str, Callable[[], nn.Module]]  # name -> function that builds the model


def ours(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> Makers:
    """Return two variants of our model: with padding and full logits, like the peers, and as built by `train`.

    Both use oneDNN for large matrix multiplications where it is faster.
    """
    chunk = LOSS_CHUNK_SIZE if config.is_encoder_decoder else 0
    return {
        OURS: lambda: fast_products(model_class(deepcopy(config))),
        PACKED: lambda: make_fast(model_class(deepcopy(config)), loss_chunk_size=chunk),
    }


def translators(size: Size) -> Makers:
    """Return the encoder-decoders. Label smoothing is off, so that all models compute the same loss."""
    theirs = SPECIAL | {
        "vocab_size": size.vocab_size,
        "d_model": size.d_model,
        "encoder_layers": size.layers,
        "decoder_layers": size.layers,
        "encoder_ffn_dim": size.d_ff,
        "decoder_ffn_dim": size.d_ff,
        "encoder_attention_heads": size.num_heads,
        "decoder_attention_heads": size.num_heads,
        "activation_function": "relu",
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "max_position_embeddings": 512,
        "scale_embedding": True,
        "forced_eos_token_id": None,
    }
    config = VanillaTransformerConfig(
        **size.fields(encoder_layers=size.layers, decoder_layers=size.layers),
        label_smoothing=0.0,
    )
    return ours(VanillaTransformerForConditionalGeneration, config) | {
        "Marian": lambda: MarianMTModel(MarianConfig(**theirs)),
        "torch.nn.Transformer": lambda: TorchTransformer(size),
        "x-transformers": lambda: XTransformersTranslator(size),
    }


def language_models(size: Size, length: int) -> Makers:
    config = VanillaTransformerDecoderConfig(
        **size.fields(num_layers=size.layers),
        norm_position="pre",
        activation_function="gelu_pytorch_tanh",
        position_embedding="learned",
        max_position_embeddings=length,
        dropout=0.0,
        label_smoothing=0.0,
    )
    theirs = GPT2Config(
        vocab_size=size.vocab_size,
        n_embd=size.d_model,
        n_inner=size.d_ff,
        n_head=size.num_heads,
        n_layer=size.layers,
        n_positions=length,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return ours(VanillaTransformerForCausalLM, config) | {
        "GPT-2": lambda: GPT2LMHeadModel(theirs),
        "plain GPT": lambda: PlainGPT(size, length),
    }


def classifiers(size: Size) -> Makers:
    config = VanillaTransformerEncoderConfig(
        **size.fields(num_layers=size.layers),
        activation_function="gelu",
        num_labels=2,
    )
    theirs = DistilBertConfig(
        vocab_size=size.vocab_size,
        dim=size.d_model,
        hidden_dim=size.d_ff,
        n_heads=size.num_heads,
        n_layers=size.layers,
        attention_dropout=0.0,
    )
    return ours(VanillaTransformerForSequenceClassification, config) | {
        "DistilBERT": lambda: DistilBertForSequenceClassification(theirs),
    }
