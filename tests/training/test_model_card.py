"""The model card says what a saved config keeps of its training."""

import pytest
from huggingface_hub import ModelCard
from transformers import TrainerState

from family import decoder_only, encoder_decoder, encoder_only
from vanilla_transformer import VanillaTransformerForSequenceClassification
from vanilla_transformer.training.model_card import CardFacts, write_model_card
from vanilla_transformer.training.recipe import RecipeArguments


@pytest.mark.parametrize(
    ("make", "tag", "said"),
    [
        (encoder_decoder, "translation", True),
        (lambda: decoder_only(label_smoothing=0.2), "text-generation", True),
        (lambda: encoder_decoder(label_smoothing=0.0), "translation", False),
        (lambda: encoder_only(VanillaTransformerForSequenceClassification), "text-classification", False),
    ],
)
def test_a_card_says_that_further_training_is_smoothed_where_it_is(make, tag, said, tmp_path):
    model = make()
    arguments = RecipeArguments(str(tmp_path), use_cpu=True)
    write_model_card(tmp_path, model, arguments, TrainerState(), CardFacts(tag, "phrasebook", {}))
    sentence = f"`label_smoothing={model.config.label_smoothing}`" if said else "label_smoothing"
    assert (sentence in ModelCard.load(tmp_path / "README.md").text) == said
