# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Generation: the length penalty of section 6.1, encoder-decoder caches, and both names of the cache argument."""

import copy
import inspect
import os
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps

from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.generation import GenerationConfig, GenerationMixin
from transformers.utils import is_torchdynamo_compiling

from .configuration_vanilla_transformer import check_private_api


# Argument by which `generate` passes the cache: "cache" since transformers 5.24, "past_key_values" in older releases.
CACHE = "cache"
if CACHE not in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters:
    CACHE = "past_key_values"


def takes_cache(forward: Callable) -> Callable:
    """Let a `forward` method with the argument `past_key_values` also accept the cache as `cache`.

    If both are given, the non-empty cache wins: PEFT passes its prefix as `past_key_values` next to the fresh `cache`.
    """
    if CACHE == "past_key_values":
        return forward

    @wraps(forward)
    def call(self, *args, cache: Cache | None = None, **kwargs):
        if kwargs.get("past_key_values") is not None and not is_torchdynamo_compiling():
            warnings.warn("`past_key_values` is deprecated: use `cache`.", FutureWarning, stacklevel=2)
        if cache is not None and (kwargs.get("past_key_values") is None or cache.get_seq_length()):
            kwargs["past_key_values"] = cache
        return forward(self, *args, **kwargs)

    # `generate` and Trainer inspect the signature.
    signature = inspect.signature(forward)
    *named, rest = signature.parameters.values()
    named.append(inspect.Parameter("cache", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Cache | None))
    call.__signature__ = signature.replace(parameters=[*named, rest])
    return call


class LanguageGenerationMixin(GenerationMixin):
    """Like `GenerationMixin`, but `max_new_tokens` overrides the model's default `max_length` without a warning."""

    def _prepare_generated_length(
        self, *, generation_config: GenerationConfig, has_default_max_length: bool, **kwargs
    ):
        is_default = generation_config.max_length == self.generation_config.max_length
        return super()._prepare_generated_length(
            generation_config=generation_config,
            has_default_max_length=has_default_max_length or (generation_config.max_new_tokens and is_default),
            **kwargs,
        )


USES_GNMT_PENALTY: ContextVar[bool] = ContextVar("uses_gnmt_penalty", default=False)  # in the current beam search


class TranslationGenerationMixin(LanguageGenerationMixin):
    """Generation for encoder-decoders, with the length penalty of section 6.1.

    This penalty is Equation 14 of Wu et al. (2016, arXiv 1609.08144): a hypothesis of n tokens has the score
    log P / ((5 + n) / 6)^alpha, whereas transformers divides by n^alpha. To enable it, set
    `GenerationConfig(gnmt_length_penalty=True)` or pass `gnmt_length_penalty=True` to `generate`. Beam search counts
    n from the end of the prompt: a prompt length reduced by 5 gives 5 + n, and 6^alpha * log P accounts for the 6.
    """

    def _enable_gnmt_length_penalty(self) -> None:
        """Add `gnmt_length_penalty` to the model's generation config, so that it can be set, passed and saved."""
        if not hasattr(self.generation_config, "gnmt_length_penalty"):
            self.generation_config.gnmt_length_penalty = False
        # Otherwise transformers would rebuild the generation config from the model's config and lose the option.
        self.generation_config._from_model_config = False

    def adjust_generation_fn(
        self, generation_config, from_auto_class, from_pipeline, pretrained_model_name_or_path, *args, **kwargs
    ) -> None:
        """Read the generation config next to the weights; transformers would not find it in a subfolder of "."."""
        source = pretrained_model_name_or_path
        source = os.path.abspath(source) if source is not None and os.path.isdir(source) else source
        super().adjust_generation_fn(generation_config, from_auto_class, from_pipeline, source, *args, **kwargs)
        self._enable_gnmt_length_penalty()

    def _beam_search(self, *args, generation_config: GenerationConfig, **kwargs):
        token = USES_GNMT_PENALTY.set(bool(getattr(generation_config, "gnmt_length_penalty", False)))
        try:
            return super()._beam_search(*args, generation_config=generation_config, **kwargs)
        finally:
            USES_GNMT_PENALTY.reset(token)

    def _update_finished_beams(
        self, *, topk_log_probs: Tensor, decoder_prompt_len: int, length_penalty: float, **kwargs
    ):
        if USES_GNMT_PENALTY.get():
            topk_log_probs, decoder_prompt_len = topk_log_probs * 6**length_penalty, decoder_prompt_len - 5
        return super()._update_finished_beams(
            topk_log_probs=topk_log_probs,
            decoder_prompt_len=decoder_prompt_len,
            length_penalty=length_penalty,
            **kwargs,
        )

    def _check_early_stop_heuristic(
        self, *, running_beam_scores: Tensor, decoder_prompt_len: int, length_penalty: float, **kwargs
    ):
        if USES_GNMT_PENALTY.get():
            running_beam_scores, decoder_prompt_len = running_beam_scores * 6**length_penalty, decoder_prompt_len - 5
        return super()._check_early_stop_heuristic(
            running_beam_scores=running_beam_scores,
            decoder_prompt_len=decoder_prompt_len,
            length_penalty=length_penalty,
            **kwargs,
        )

    def prepare_inputs_for_generation(self, *args, decoder_attention_mask: Tensor | None = None, **kwargs) -> dict:
        """Compute position ids from the 2-D mask, because with a static cache, transformers expands it to 4-D."""
        inputs = super().prepare_inputs_for_generation(*args, decoder_attention_mask=decoder_attention_mask, **kwargs)
        mask = inputs.get("decoder_attention_mask", decoder_attention_mask)
        unnumbered = decoder_attention_mask is not None and kwargs.get("decoder_position_ids") is None
        if unnumbered and decoder_attention_mask.dim() < mask.dim():
            positions = (decoder_attention_mask.long().cumsum(-1) - 1).clamp(min=0)
            inputs["decoder_position_ids"] = positions[:, -mask.shape[2] :]
        return inputs

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *args, **kwargs) -> None:
        """Drop a source mask without padding, and cache all source keys even if there is a sliding window.

        Otherwise every step would check the mask again. Compiled steps keep the mask to avoid recompilation.
        """
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
        cache, mask = model_kwargs.get(CACHE), model_kwargs.get("attention_mask")
        source = model_kwargs["encoder_outputs"][0].shape[:2]
        whole = mask is not None and mask.shape == source and bool(mask.all())
        if whole and not getattr(cache, "is_compileable", False):
            model_kwargs["attention_mask"] = None
        if isinstance(cache, EncoderDecoderCache) and any(cache.cross_attention_cache.is_sliding):
            config = copy.deepcopy(self.config.get_text_config(decoder=True))
            config.sliding_window = None
            cross_cache_class = type(cache.cross_attention_cache)
            cache.cross_attention_cache = cross_cache_class(
                config=config, **({} if cross_cache_class is DynamicCache else {"max_cache_len": source[1]})
            )

    def compute_transition_scores(self, *args, **kwargs) -> Tensor:
        """Like `GenerationMixin.compute_transition_scores`, but with the size of the target vocabulary."""
        model = copy.copy(self)
        model.config = copy.copy(self.config)
        model.config.vocab_size = self.config.target_vocab_size or self.config.vocab_size
        return GenerationMixin.compute_transition_scores(model, *args, **kwargs)


check_private_api(
    GenerationMixin,
    "_beam_search",
    "_check_early_stop_heuristic",
    "_prepare_cache_for_generation",
    "_prepare_generated_length",
    "_update_finished_beams",
    "adjust_generation_fn",
)
check_private_api(GenerationConfig(), "_from_model_config")
