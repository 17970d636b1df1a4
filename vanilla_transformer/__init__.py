# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""All public names of the Transformer of "Attention Is All You Need" for Hugging Face.

Importing this module registers the three families with the Auto classes, so that
`AutoModelForSeq2SeqLM.from_pretrained` and its siblings load their checkpoints without `trust_remote_code`.
"""

import sys
from itertools import pairwise
from pathlib import Path

from vanilla_transformer.lazy import lazy_names


# The four model files are at the repository's root in a clone, and inside the package in the wheel.
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

# Importing the models takes seconds, so the command line shows help and reports wrong options before that.
if Path(sys.argv[0]).stem == "vanilla-transformer" or ("-m", "vanilla_transformer") in pairwise(sys.orig_argv):
    __getattr__ = lazy_names(__name__, {"models": tuple(__all__)})
else:
    from vanilla_transformer.models import *  # noqa: F403
