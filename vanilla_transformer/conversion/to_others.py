"""Convert Vanilla Transformer models to Marian or GPT-2 models, for tools that support those architectures."""

import copy
from typing import Any, TypeVar

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    PreTrainedConfig,
    PreTrainedModel,
)

from vanilla_transformer.conversion.mapping import (
    FAIRSEQ_NAMES,
    FUSED,
    GPT2_FIELDS,
    GPT_NAMES,
    TOKEN_FIELDS,
    TRANSLATOR_FIELDS,
    interleaved_to_half_split,
    require,
    their_fields,
    to_theirs,
)


Theirs = TypeVar("Theirs", bound=PreTrainedModel)


def to_marian(ours: PreTrainedModel) -> MarianMTModel:
    """Convert to a Marian model with the same outputs, except for the layer norm epsilon (1e-5 in Marian).

    Biases that our model does not have are set to 0.

    Raises:
        CannotRepresent: the model uses a feature that Marian does not support.
    """
    config = ours.config
    require(config.norm_position == "post", "norm_position='pre': Marian normalises after each sub-layer.")
    require(config.position_embedding == "sinusoidal", "position_embedding='learned': Marian has sinusoids.")
    require(config.sinusoid_frequencies == "paper", "sinusoid_frequencies='tensor2tensor': Marian has the paper's.")
    require(config.position_offset == 0, f"position_offset={config.position_offset}: Marian counts from 0.")
    require(not config.normalize_embedding, "normalize_embedding=True: Marian has no norm there.")
    require(config.sliding_window is None, f"sliding_window={config.sliding_window}: Marian attends to everything.")
    require(config.layer_norm_eps <= 2e-5, f"layer_norm_eps={config.layer_norm_eps}: Marian's is 1e-5.")
    require_usual_heads(config)
    weights = {name: weight.clone() for name, weight in ours.state_dict().items()}
    if config.sinusoid_layout == "interleaved":
        weights = interleaved_to_half_split(weights, config.d_model)
    shared = config.share_encoder_decoder_embeddings
    target_vocab_size = config.target_vocab_size or config.vocab_size
    theirs = MarianMTModel(
        MarianConfig(
            **their_fields(config, [*TRANSLATOR_FIELDS, *TOKEN_FIELDS]),
            decoder_attention_heads=config.num_heads,
            decoder_vocab_size=target_vocab_size,
            share_encoder_decoder_embeddings=shared,
            tie_word_embeddings=config.tie_word_embeddings,
            forced_eos_token_id=None,
        )
    )
    named = to_theirs(weights, [pair for pair in FAIRSEQ_NAMES if "output_projection" not in pair[0]])
    if "final_logits_bias" in named:
        named["final_logits_bias"] = named["final_logits_bias"][None]
    if shared:
        named["model.shared.weight"] = named["model.encoder.embed_tokens.weight"]
    load_with_zero_biases(theirs, named)
    return finish(theirs, ours)


def to_gpt2(ours: PreTrainedModel) -> GPT2LMHeadModel:
    """Convert to a GPT-2 model with the same outputs. Sinusoids become a table of learned positions.

    Raises:
        CannotRepresent: the model uses a feature that GPT-2 does not support.
    """
    config = ours.config
    require(config.norm_position == "pre", "norm_position='post': GPT-2 normalises before each sub-layer.")
    require(not config.normalize_embedding, "normalize_embedding=True: GPT-2 has no norm there.")
    require(not config.output_bias, "output_bias=True: GPT-2 has no bias there.")
    require(config.sliding_window is None, f"sliding_window={config.sliding_window}: GPT-2 attends to everything.")
    require_usual_heads(config)
    scaled = config.scale_embedding
    weights = {name: weight.clone() for name, weight in ours.state_dict().items()}
    positions = torch.arange(config.max_position_embeddings)[None] + config.position_offset
    weights["model.embed_positions.weight"] = ours.model.embed_positions(positions)[0].detach()
    if scaled:  # GPT-2 does not scale embeddings: scale the input embedding, and untie it from the output projection
        weights["model.embed_tokens.weight"] *= config.d_model**0.5
    for name in [name for name in weights if ".q_proj." in name]:
        parts = [weights.pop(name.replace("q_proj", f"{letter}_proj")) for letter in "qkv"]
        weights[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
    theirs = GPT2LMHeadModel(
        GPT2Config(
            **their_fields(config, [*GPT2_FIELDS, *TOKEN_FIELDS]),
            n_inner=config.d_ff,
            embd_pdrop=config.dropout,
            tie_word_embeddings=config.tie_word_embeddings and not scaled,
        )
    )
    names = [pair for pair in GPT_NAMES if "s_embed" not in pair[0]]  # skip the names of GPT-1's embeddings
    named = to_theirs(weights, names)
    load_with_zero_biases(theirs, {name: w.T if name.endswith(FUSED) else w for name, w in named.items()})
    return finish(theirs, ours)


def require_usual_heads(config: PreTrainedConfig) -> None:
    """Raise `CannotRepresent` unless d_k and d_v are d_model / num_heads."""
    usual = config.d_model // config.num_heads
    require(
        config.d_model % config.num_heads == 0 and (config.d_k, config.d_v) == (usual, usual),
        f"d_k={config.d_k} and d_v={config.d_v}: Marian and GPT-2 have d_model / num_heads = {usual}.",
    )


def load_with_zero_biases(theirs: PreTrainedModel, weights: dict[str, torch.Tensor]) -> None:
    """Load the weights, and set biases that our model does not have to 0.

    Raises:
        CannotRepresent: other weights are missing or unexpected.
    """
    missing, unexpected = theirs.load_state_dict(weights, strict=False)
    parameters = dict(theirs.named_parameters())
    computed = ("bias", "embed_positions.weight")  # set to 0 below, or computed by the exported model
    wrong = [name for name in missing if name in parameters and not name.endswith(computed)]
    require(not wrong and not unexpected, f"There is no counterpart of: {', '.join([*wrong, *unexpected])}.")
    with torch.no_grad():
        for name in missing:
            if name.endswith("bias") and name in parameters:
                parameters[name].zero_()


def finish(theirs: Theirs, ours: PreTrainedModel) -> Theirs:
    """Return the exported model in evaluation mode, with the generation settings of our model that it supports."""
    settings: Any = copy.deepcopy(ours.generation_config)
    if getattr(settings, "gnmt_length_penalty", False):
        print(
            "The length penalty of Wu et al. is dropped: Marian divides scores by the length to the power of "
            "length_penalty, so beam search may prefer other sentences."
        )
        del settings.gnmt_length_penalty
    theirs.generation_config = settings
    return theirs.eval()


REVERSE = {
    "marian": ("VanillaTransformerForConditionalGeneration", to_marian),
    "gpt2": ("VanillaTransformerForCausalLM", to_gpt2),
}
