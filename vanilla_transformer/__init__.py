# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Implement the Transformer of "Attention Is All You Need" for Hugging Face.

Importing this package registers the three model families with the Auto classes, so that
`AutoModelForSeq2SeqLM.from_pretrained` and similar methods load checkpoints without `trust_remote_code`.
"""

import sys
from itertools import pairwise
from pathlib import Path

from vanilla_transformer.lazy import lazy_names


# The four model files are in the repository root in a clone, but inside the package in a wheel.
if not Path(__path__[0], "modeling_vanilla_transformer.py").is_file():
    __path__.append(str(Path(__path__[0]).parent))

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

# Importing the models takes seconds. Delay it on the command line, so that help and invalid options are shown at once.
if Path(sys.argv[0]).stem == "vanilla-transformer" or ("-m", "vanilla_transformer") in pairwise(sys.orig_argv):
    __getattr__ = lazy_names(__name__, {"models": tuple(__all__)})
else:
    from vanilla_transformer.models import *  # noqa: F403
