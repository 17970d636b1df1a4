"""Map the config fields and weight names of published Transformers to those of the Vanilla Transformer.

`convert` uses a `Mapping` to build a Vanilla Transformer; the converters in `to_others` use the tables in reverse.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN


Weights = dict[str, Tensor]

# Pairs of substrings of weight names (in the published model, in ours), in the order of replacement
FAIRSEQ_NAMES = [
    ("encoder_attn_layer_norm", "cross_attn_add_norm.norm"),
    ("self_attn_layer_norm", "self_attn_add_norm.norm"),
    ("final_layer_norm", "feed_forward_add_norm.norm"),
    ("encoder_attn.", "cross_attn."),
    (".out_proj.", ".o_proj."),
    (".fc1.", ".feed_forward.fc1."),
    (".fc2.", ".feed_forward.fc2."),
    ("layernorm_embedding", "embed_norm"),
    ("coder.layer_norm.", "coder.norm."),
    ("final_logits_bias", "lm_head.bias"),
    ("model.decoder.output_projection", "lm_head"),
]
GPT_NAMES = [
    ("transformer.wte.", "model.embed_tokens."),
    ("transformer.wpe.", "model.embed_positions."),
    ("transformer.tokens_embed.", "model.embed_tokens."),
    ("transformer.positions_embed.", "model.embed_positions."),
    ("transformer.ln_f.", "model.norm."),
    ("transformer.h.", "model.layers."),
    (".ln_1.", ".self_attn_add_norm.norm."),
    (".ln_2.", ".feed_forward_add_norm.norm."),
    (".attn.c_attn.", ".self_attn.qkv_proj."),
    (".attn.c_proj.", ".self_attn.o_proj."),
    (".mlp.c_fc.", ".feed_forward.fc1."),
    (".mlp.c_proj.", ".feed_forward.fc2."),
]
BERT_NAMES = [
    ("bert.embeddings.word_embeddings.", "model.embed_tokens."),
    ("bert.embeddings.position_embeddings.", "model.embed_positions."),
    ("bert.embeddings.token_type_embeddings.", "model.embed_types."),
    ("bert.embeddings.LayerNorm.", "model.embed_norm."),
    ("bert.encoder.layer.", "model.layers."),
    (".attention.self.query.", ".self_attn.q_proj."),
    (".attention.self.key.", ".self_attn.k_proj."),
    (".attention.self.value.", ".self_attn.v_proj."),
    (".attention.output.dense.", ".self_attn.o_proj."),
    (".attention.output.LayerNorm.", ".self_attn_add_norm.norm."),
    (".intermediate.dense.", ".feed_forward.fc1."),
    (".output.dense.", ".feed_forward.fc2."),
    (".output.LayerNorm.", ".feed_forward_add_norm.norm."),
    ("cls.predictions.transform.dense.", "transform.dense."),
    ("cls.predictions.transform.LayerNorm.", "transform.norm."),
    ("cls.predictions.decoder.", "lm_head."),
]
DISTILBERT_NAMES = [
    ("distilbert.embeddings.word_embeddings.", "model.embed_tokens."),
    ("distilbert.embeddings.position_embeddings.", "model.embed_positions."),
    ("distilbert.embeddings.LayerNorm.", "model.embed_norm."),
    ("distilbert.transformer.layer.", "model.layers."),
    (".attention.q_lin.", ".self_attn.q_proj."),
    (".attention.k_lin.", ".self_attn.k_proj."),
    (".attention.v_lin.", ".self_attn.v_proj."),
    (".attention.out_lin.", ".self_attn.o_proj."),
    (".sa_layer_norm.", ".self_attn_add_norm.norm."),
    (".ffn.lin1.", ".feed_forward.fc1."),
    (".ffn.lin2.", ".feed_forward.fc2."),
    (".output_layer_norm.", ".feed_forward_add_norm.norm."),
    ("vocab_transform.", "transform.dense."),
    ("vocab_layer_norm.", "transform.norm."),
    ("vocab_projector.", "lm_head."),
]

Fields = list[tuple[str, str]]


def same(*names: str) -> Fields:
    """Return pairs for config fields that have the same name in both models."""
    return [(name, name) for name in names]


# Pairs of config fields with equal values (in the published model, in ours)
TRANSLATOR_FIELDS = [
    ("encoder_attention_heads", "num_heads"),
    ("encoder_ffn_dim", "d_ff"),
    ("decoder_ffn_dim", "decoder_d_ff"),
    *same("vocab_size", "d_model", "encoder_layers", "decoder_layers", "activation_function", "dropout"),
    *same("attention_dropout", "activation_dropout", "scale_embedding", "max_position_embeddings"),
    *same("decoder_start_token_id"),
]
GPT_FIELDS = [
    ("n_embd", "d_model"),
    ("n_head", "num_heads"),
    ("n_layer", "num_layers"),
    ("resid_pdrop", "dropout"),
    ("attn_pdrop", "attention_dropout"),
    ("layer_norm_epsilon", "layer_norm_eps"),
    ("n_positions", "max_position_embeddings"),
    *same("vocab_size"),
]
GPT2_FIELDS = [*GPT_FIELDS, *same("activation_function")]
# BERT's config has these names, and DistilBERT's has aliases for them.
ENCODER_FIELDS = [
    ("hidden_size", "d_model"),
    ("num_attention_heads", "num_heads"),
    ("num_hidden_layers", "num_layers"),
    *same("vocab_size", "max_position_embeddings"),
]
BERT_FIELDS = [
    *ENCODER_FIELDS,
    ("intermediate_size", "d_ff"),
    ("hidden_act", "activation_function"),
    ("hidden_dropout_prob", "dropout"),
    ("attention_probs_dropout_prob", "attention_dropout"),
    *same("type_vocab_size"),
]
DISTILBERT_FIELDS = [
    *ENCODER_FIELDS,
    ("hidden_dim", "d_ff"),
    ("activation", "activation_function"),
    *same("dropout", "attention_dropout"),
]
TOKEN_FIELDS = same("pad_token_id", "bos_token_id", "eos_token_id")

FUSED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")  # GPT-1 and GPT-2 store these as (inputs, outputs)


class CannotRepresent(ValueError):
    """Raised if the model uses a feature that the target architecture does not support."""


def require(condition: bool, reason: str) -> None:
    """Raise `CannotRepresent` with this reason unless the condition is true."""
    if not condition:
        raise CannotRepresent(reason)


def our_fields(config: PreTrainedConfig, fields: Fields) -> dict[str, Any]:
    """Return the values of a published model's config under our field names.

    Raises:
        CannotRepresent: transformers does not have the activation function.
    """
    values = {ours: getattr(config, theirs) for theirs, ours in fields}
    name = values.get("activation_function", "relu")
    require(name in ACT2FN, f"activation {name!r} is not one of: {', '.join(ACT2FN)}.")
    return values


def their_fields(config: PreTrainedConfig, fields: Fields) -> dict[str, Any]:
    """Return the values of our config under the field names of the published model."""
    return {theirs: getattr(config, ours) for theirs, ours in fields}


def translator_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the fields common to all encoder-decoders with fairseq's config names."""
    heads = (config.encoder_attention_heads, config.decoder_attention_heads)
    require(heads[0] == heads[1], f"{heads[0]} heads in the encoder, {heads[1]} in the decoder: both must be equal.")
    own = {"attention_bias": True, "layer_norm_eps": 1e-5, "sinusoid_layout": "half_split"}
    return our_fields(config, TRANSLATOR_FIELDS) | own


def marian_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """Return Marian's fields: sinusoids in "half_split" layout, and a bias in the output projection."""
    target = config.decoder_vocab_size
    own = {} if config.share_encoder_decoder_embeddings or target is None else {"target_vocab_size": target}
    return translator_fields(config) | own | {"output_bias": True}


def bart_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """Return BART's fields: learned positions, the first two of them unused, and a layer norm on the embeddings."""
    learned = {"position_embedding": "learned", "position_offset": 2, "sinusoid_layout": "interleaved"}
    return translator_fields(config) | learned | {"output_bias": True, "normalize_embedding": True}


def m2m_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the fields of M2M100 and NLLB: pre-norm, and positions that start at the padding id plus 1."""
    positions = {"sinusoid_frequencies": "tensor2tensor", "position_offset": config.pad_token_id + 1}
    return translator_fields(config) | positions | {"norm_position": "pre"}


def fsmt_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """Return FSMT's fields: two vocabularies, and positions that start at the padding id plus 1."""
    positions = {"sinusoid_frequencies": "tensor2tensor", "position_offset": config.pad_token_id + 1}
    sizes = {"vocab_size": config.src_vocab_size, "target_vocab_size": config.tgt_vocab_size}
    return translator_fields(config) | positions | sizes


def gpt_fields(config: PreTrainedConfig, fields: Fields) -> dict[str, Any]:
    """Return the fields common to GPT-1 and GPT-2."""
    return our_fields(config, fields) | {
        "d_ff": getattr(config, "n_inner", None) or 4 * config.n_embd,
        "position_embedding": "learned",
        "scale_embedding": False,
        "attention_bias": True,
    }


def gpt1_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """Return GPT-1's fields: post-norm, and GPT-1's own names for activation functions.

    Raises:
        CannotRepresent: the activation function is not one of GPT-1's.
    """
    functions = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}  # GPT-1's name -> ours
    require(config.afn in functions, f"afn={config.afn!r} is not one of: {', '.join(functions)}.")
    return gpt_fields(config, GPT_FIELDS) | {"activation_function": functions[config.afn]}


def gpt2_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the config fields of a GPT-2 model, which uses pre-norm.

    Raises:
        CannotRepresent: the model has cross-attention, or scales attention scores differently.
    """
    require(not config.add_cross_attention, "add_cross_attention=True: our decoder-only model has no cross-attention.")
    require(config.scale_attn_weights, "scale_attn_weights=False: our model divides scores by sqrt(d_k).")
    require(
        not config.scale_attn_by_inverse_layer_idx, "scale_attn_by_inverse_layer_idx=True: our layers share one scale."
    )
    return gpt_fields(config, GPT2_FIELDS) | {"norm_position": "pre"}


def encoder_fields(config: PreTrainedConfig, fields: Fields) -> dict[str, Any]:
    """Return the fields common to BERT and DistilBERT."""
    return our_fields(config, fields) | {
        "layer_norm_eps": getattr(config, "layer_norm_eps", 1e-12),
        "position_embedding": "learned",
        "scale_embedding": False,
        "normalize_embedding": True,
        "attention_bias": True,
        "output_bias": True,
        "mlm_head_transform": True,
    }


def bert_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """Return BERT's fields.

    Raises:
        CannotRepresent: the model has relative position embeddings, or is a decoder.
    """
    kind = getattr(config, "position_embedding_type", "absolute")
    require(kind == "absolute", f"position_embedding_type={kind!r}: our model has absolute positions.")
    require(not config.is_decoder, "is_decoder=True: our model is an encoder.")
    return encoder_fields(config, BERT_FIELDS)


def distilbert_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """Return DistilBERT's fields. DistilBERT has no token types."""
    return encoder_fields(config, DISTILBERT_FIELDS)


@dataclass(frozen=True)
class Mapping:
    """Conversion rules for one published architecture.

    Args:
        fields: function that returns our config fields for a config of this architecture.
        names: pairs of substrings of weight names (in the published model, in ours).
        heads: supported classes of the architecture -> our Auto class.
        base_prefix: prefix of weight names that only models with a head have.
        dropped: regular expression for weights to ignore: copies, poolers, computed positions.
    """

    fields: Callable[[PreTrainedConfig], dict[str, Any]]
    names: list[tuple[str, str]]
    heads: dict[str, str]
    base_prefix: str = "model"
    dropped: str = "$^"


def encoder_heads(name: str) -> dict[str, str]:
    """Return a mapping from the supported classes of BERT or DistilBERT to our Auto classes."""
    kinds = ("ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering")
    return {f"{name}Model": "AutoModel"} | {f"{name}{kind}": f"AutoModel{kind}" for kind in kinds}


TRANSLATOR = "AutoModelForSeq2SeqLM"
# Copies of the shared embedding, and computed positions
TRANSLATOR_COPIES = r"model\.shared\.weight|.*embed_positions\.weight"
MAPPINGS = {
    "marian": Mapping(marian_fields, FAIRSEQ_NAMES, {"MarianMTModel": TRANSLATOR}, dropped=TRANSLATOR_COPIES),
    "m2m_100": Mapping(
        m2m_fields, FAIRSEQ_NAMES, {"M2M100ForConditionalGeneration": TRANSLATOR}, dropped=TRANSLATOR_COPIES
    ),
    "fsmt": Mapping(
        fsmt_fields, FAIRSEQ_NAMES, {"FSMTForConditionalGeneration": TRANSLATOR}, dropped=TRANSLATOR_COPIES
    ),
    "bart": Mapping(
        bart_fields, FAIRSEQ_NAMES, {"BartForConditionalGeneration": TRANSLATOR}, dropped=r"model\.shared\.weight"
    ),
    "openai-gpt": Mapping(gpt1_fields, GPT_NAMES, {"OpenAIGPTLMHeadModel": "AutoModelForCausalLM"}, "transformer"),
    "gpt2": Mapping(gpt2_fields, GPT_NAMES, {"GPT2LMHeadModel": "AutoModelForCausalLM"}, "transformer"),
    "bert": Mapping(
        bert_fields, BERT_NAMES, encoder_heads("Bert"), "bert", r"cls\.predictions\.bias|(bert\.)?pooler\..*"
    ),
    "distilbert": Mapping(distilbert_fields, DISTILBERT_NAMES, encoder_heads("DistilBert"), "distilbert"),
}


def rename(name: str, names: list[tuple[str, str]]) -> str:
    """Rename a weight by replacing substrings of its name, one (old, new) pair after the other."""
    for old, new in names:
        name = name.replace(old, new)
    return name


def from_theirs(weights: Weights, mapping: Mapping, with_head: bool) -> Weights:
    """Convert the weights of a published model to our names and shapes."""
    prefix = "" if with_head else f"{mapping.base_prefix}."
    ours: Weights = {}
    for name, weight in weights.items():
        name = prefix + name
        if re.fullmatch(mapping.dropped, name):
            continue
        new_name = rename(name, mapping.names)
        if name.endswith(FUSED):
            weight = weight.T
        if ".qkv_proj." in new_name:
            for letter, part in zip("qkv", weight.chunk(3), strict=True):
                ours[new_name.replace("qkv_proj", f"{letter}_proj")] = part.clone()
        else:
            ours[new_name] = weight.reshape(-1) if new_name == "lm_head.bias" else weight.contiguous()
    return ours if with_head else {name.removeprefix("model."): weight for name, weight in ours.items()}


def interleaved_to_half_split(weights: Weights, d_model: int) -> Weights:
    """Permute the d_model features of every weight, so that all sines come before all cosines.

    The outputs stay the same, because embeddings, norms and residual connections do not depend on the feature order.
    """
    order = torch.cat((torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)))
    # weights whose outputs are the d_model features; all other matrices have these features as inputs
    writes = (".o_proj.", ".fc2.", "norm.")
    reordered = {}
    for name, weight in weights.items():
        if any(part in name for part in writes):
            reordered[name] = weight[order]
        elif weight.dim() == 2:
            reordered[name] = weight[:, order]
        else:
            reordered[name] = weight
    return reordered


def to_theirs(weights: Weights, names: list[tuple[str, str]]) -> Weights:
    """Rename our weights to the names of the published model: the reverse of `rename`."""
    return {rename(name, [(ours, theirs) for theirs, ours in reversed(names)]): w for name, w in weights.items()}
