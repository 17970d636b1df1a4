"""The public classes, registered with the Auto classes of transformers."""

import transformers

import vanilla_transformer.fast  # noqa: F401, to register the attention implementation "packed_sdpa"
from vanilla_transformer.configuration_vanilla_transformer import (  # noqa: F401
    PRESETS,
    VanillaTransformerConfig,
    VanillaTransformerDecoderConfig,
    VanillaTransformerEncoderConfig,
)
from vanilla_transformer.modeling_vanilla_transformer import (  # noqa: F401
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
from vanilla_transformer.pipeline_vanilla_transformer import (  # noqa: F401
    QuestionAnsweringPipeline,
    TranslationPipeline,
)


for config_class in (VanillaTransformerConfig, VanillaTransformerEncoderConfig, VanillaTransformerDecoderConfig):
    transformers.AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    for auto_class, model_name in config_class.auto_classes.items():
        getattr(transformers, auto_class).register(config_class, globals()[model_name], exist_ok=True)
