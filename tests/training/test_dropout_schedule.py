"""Test the dropout schedule: the rate at each step, in resumed and interrupted runs, and after training."""

import pytest
from transformers import AutoModelForSeq2SeqLM, TrainerCallback

from tiny_training import tiny_trainer
from vanilla_transformer.training.arguments import RecipeArguments


class Rates(TrainerCallback):
    """Record the dropout rates of each step."""

    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        layer = model.model.decoder.layers[1]
        modules = (model.model.encoder, layer.self_attn_add_norm, layer.feed_forward_add_norm, layer.feed_forward)
        self.seen.append([module.dropout.p for module in modules])


def trained(folder, resume=False, **options):
    rates = Rates()
    trainer = tiny_trainer(folder, dropout=0.3, dropout_start=0.1, save_steps=2, **options)
    trainer.add_callback(rates)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, rates.seen


def test_the_rate_increases_linearly_from_the_first_step_to_the_last(tmp_path):
    trainer, seen = trained(tmp_path, max_steps=5)
    # Dropout inside the feed-forward network has the rate config.activation_dropout, which is 0.
    assert seen == [pytest.approx([rate, rate, rate, 0]) for rate in (0.1, 0.15, 0.2, 0.25, 0.3)]
    assert trainer.model.model.encoder.dropout.p == trainer.model.config.dropout == 0.3
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "checkpoint-2").config.dropout == 0.3


def test_a_resumed_run_has_the_same_rates_and_weights_as_an_uninterrupted_one(tmp_path):
    whole, rates = trained(tmp_path / "whole", max_steps=6)
    interrupted = tiny_trainer(tmp_path / "parts", dropout=0.3, dropout_start=0.1, save_steps=2, max_steps=6)

    class Interrupt(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            control.should_training_stop = True

    interrupted.add_callback(Interrupt())
    interrupted.train()
    assert interrupted.state.global_step == 2
    resumed, rest = trained(tmp_path / "parts", resume=True, max_steps=6)
    assert rest == rates[2:]
    for name, weight in whole.model.state_dict().items():
        assert weight.equal(resumed.model.state_dict()[name]), name


def test_an_interrupted_run_does_not_affect_the_dropout_rates_of_the_next_run(tmp_path):
    trainer = tiny_trainer(tmp_path, dropout=0.3, dropout_start=0.1, max_steps=5, save_strategy="no")
    rates = Rates()
    trainer.add_callback(rates)
    whole_step = trainer.training_step

    def interrupt(*args, **kwargs):
        if trainer.state.global_step == 2:
            raise KeyboardInterrupt
        return whole_step(*args, **kwargs)

    trainer.training_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.training_step = whole_step
    rates.seen.clear()
    trainer.train()
    assert [step[0] for step in rates.seen] == pytest.approx([0.1, 0.15, 0.2, 0.25, 0.3])
    assert trainer.model.model.encoder.dropout.p == 0.3


def test_a_run_with_a_different_dropout_start_is_not_resumed(tmp_path):
    trained(tmp_path, max_steps=2)
    with pytest.raises(ValueError, match=r"dropout_start is 0\.2, and was 0\.1"):
        tiny_trainer(tmp_path, dropout=0.3, dropout_start=0.2, max_steps=4).train(resume_from_checkpoint=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout_start": 1.0}, r"dropout_start=1\.0 must be at least 0 and less than 1"),
        ({"dropout_start": -0.1}, r"dropout_start=-0\.1 must be"),
        ({"dropout_start": 0.1, "torch_compile": True}, "changes the rate at each step, and --torch_compile"),
    ],
)
def test_rates_out_of_range_and_torch_compile_raise_an_error(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        RecipeArguments(output_dir=str(tmp_path), **options)


def test_a_model_without_dropout_raises_an_error_before_the_first_step(tmp_path):
    trainer = tiny_trainer(tmp_path, dropout=0.0, dropout_start=0.1)
    with pytest.raises(ValueError, match=r"has no nn.Dropout with the rate config.dropout=0.0"):
        trainer.train()
    assert trainer.state.global_step == 0
