# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""The Transformer of "Attention Is All You Need" for Hugging Face: everything that is public, in one import.

Importing this module registers the three families with the Auto classes, so that
`AutoModelForSeq2SeqLM.from_pretrained` and its siblings load their checkpoints without `trust_remote_code`.
"""

from pathlib import Path

import transformers


# In a clone the files that travel with a checkpoint lie at the repository's root; in the wheel, inside the package.
if not Path(__path__[0], "modeling_vanilla_transformer.py").is_file():
    __path__.append(str(Path(__path__[0]).parent))

import vanilla_transformer.fast  # noqa: F401, to register the attention implementation "packed_sdpa"
from vanilla_transformer.configuration_vanilla_transformer import (
    PRESETS,
    VanillaTransformerConfig,
    VanillaTransformerDecoderConfig,
    VanillaTransformerEncoderConfig,
)
from vanilla_transformer.modeling_vanilla_transformer import (
    VanillaTransformerDecoderModel,
    VanillaTransformerEncoderModel,
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForMaskedLM,
    VanillaTransformerForQuestionAnswering,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
    VanillaTransformerModel,
    VanillaTransformerPreTrainedModel,
)
from vanilla_transformer.pipeline_vanilla_transformer import QuestionAnsweringPipeline, TranslationPipeline


__all__ = [
    "PRESETS",
    "QuestionAnsweringPipeline",
    "TranslationPipeline",
    "VanillaTransformerConfig",
    "VanillaTransformerDecoderConfig",
    "VanillaTransformerDecoderModel",
    "VanillaTransformerEncoderConfig",
    "VanillaTransformerEncoderModel",
    "VanillaTransformerForCausalLM",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerForMaskedLM",
    "VanillaTransformerForQuestionAnswering",
    "VanillaTransformerForSequenceClassification",
    "VanillaTransformerForTokenClassification",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
]

for _config_class in (VanillaTransformerConfig, VanillaTransformerEncoderConfig, VanillaTransformerDecoderConfig):
    transformers.AutoConfig.register(_config_class.model_type, _config_class, exist_ok=True)
    for _auto_class, _model_name in _config_class.auto_classes.items():
        getattr(transformers, _auto_class).register(_config_class, globals()[_model_name], exist_ok=True)
