"""The models that are compared: ours, and others of the same sizes that do the same work."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
)

from modeling_vanilla_transformer import sinusoids
from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerDecoderConfig,
    VanillaTransformerEncoderConfig,
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForSequenceClassification,
)


@dataclass(frozen=True)
class Size:
    d_model: int
    d_ff: int
    num_heads: int
    layers: int
    vocab_size: int


SIZES = {
    "small": Size(256, 1024, 4, 3, 8000),
    "base": Size(512, 2048, 8, 6, 37000),
    "language model": Size(128, 512, 4, 4, 65),
    "classifier": Size(256, 1024, 4, 4, 8000),
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` with one embedding for source, target and output, as the paper has it."""

    def __init__(self, size: Size):
        super().__init__()
        self.embed = nn.Embedding(size.vocab_size, size.d_model)
        nn.init.normal_(self.embed.weight, std=size.d_model**-0.5)
        self.body = nn.Transformer(
            size.d_model, size.num_heads, size.layers, size.layers, size.d_ff, dropout=0.1, batch_first=True
        )
        for module in self.body.modules():  # it drops attention weights and hidden units too, the others do not
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0
        self.dropout = nn.Dropout(0.1)

    def states(self, ids: Tensor) -> Tensor:
        d_model = self.embed.embedding_dim
        positions = sinusoids(torch.arange(ids.shape[1])[None], d_model)
        return self.dropout(self.embed(ids) * d_model**0.5 + positions)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        target = F.pad(labels, (1, 0), value=1)[:, :-1].clamp(min=0)
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        padding = attention_mask == 0
        output = self.body(
            self.states(input_ids),
            self.states(target),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return F.cross_entropy((output @ self.embed.weight.T).flatten(0, 1), labels.flatten())


def translators(size: Size) -> dict[str, nn.Module]:
    """Encoder-decoders; none smooths its labels, so that all compute the same loss."""
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
    ours = VanillaTransformerConfig(
        vocab_size=size.vocab_size,
        d_model=size.d_model,
        d_ff=size.d_ff,
        num_heads=size.num_heads,
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        label_smoothing=0.0,
    )
    return {
        "ours": VanillaTransformerForConditionalGeneration(ours),
        "Marian": MarianMTModel(MarianConfig(**theirs)),
        "BART": BartForConditionalGeneration(BartConfig(**theirs)),
        "torch.nn.Transformer": TorchTransformer(size),
    }


def language_models(size: Size, length: int) -> dict[str, nn.Module]:
    ours = VanillaTransformerDecoderConfig(
        vocab_size=size.vocab_size,
        d_model=size.d_model,
        d_ff=size.d_ff,
        num_heads=size.num_heads,
        num_layers=size.layers,
        norm_position="pre",
        activation_function="gelu_new",
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
    )
    return {"ours": VanillaTransformerForCausalLM(ours), "GPT-2": GPT2LMHeadModel(theirs)}


def classifiers(size: Size) -> dict[str, nn.Module]:
    ours = VanillaTransformerEncoderConfig(
        vocab_size=size.vocab_size,
        d_model=size.d_model,
        d_ff=size.d_ff,
        num_heads=size.num_heads,
        num_layers=size.layers,
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
    return {
        "ours": VanillaTransformerForSequenceClassification(ours),
        "DistilBERT": DistilBertForSequenceClassification(theirs),
    }
