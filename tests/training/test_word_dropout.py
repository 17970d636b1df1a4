"""Word dropout: what a decoder reads in training, and that nothing of it is left where it is not to be."""

import pytest
import torch
from datasets import Dataset
from transformers import MarianConfig, MarianMTModel

from family import decoder_only, encoder_decoder, encoder_only
from tiny_training import tiny_trainer
from vanilla_transformer.fast import make_fast
from vanilla_transformer.training.recipe import RecipeArguments, RecipeSeq2SeqTrainer, RecipeTrainer


NEARLY_ALL = 1 - 1e-9


def watch(decoder):
    """The tokens of each call of a decoder, whether it was training, as its first layers see them."""
    seen = []
    embeddings = []
    decoder.embed_tokens.register_forward_pre_hook(lambda module, args: embeddings.append(args[0].clone()))
    decoder.register_forward_hook(lambda module, args, output: seen.append((module.training, embeddings[-1])))
    return seen


def test_a_share_of_the_words_is_hidden_and_never_the_start(tmp_path):
    trainer = tiny_trainer(tmp_path, word_dropout=0.3, num_train_epochs=10, save_strategy="no")
    given, seen = [], watch(trainer.model.get_decoder())
    trainer.model.register_forward_pre_hook(
        lambda module, args, options: given.append(options["decoder_input_ids"].clone()), with_kwargs=True
    )
    trainer.train()
    pad, start = trainer.model.config.pad_token_id, trainer.model.config.decoder_start_token_id
    ids, read = (torch.cat([rows.flatten() for rows in batches]) for batches in (given, [rows for _, rows in seen]))
    words = (ids != pad) & (ids != start)
    assert (read[words] == pad).float().mean().item() == pytest.approx(0.3, abs=0.04)
    assert read[words & (read != pad)].equal(ids[words & (read != pad)])
    assert read[~words].equal(ids[~words])


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "fast"])
def test_the_loss_is_that_of_a_decoder_that_reads_padding(fast, tmp_path):
    options = {"dropout": 0.0, "per_device_train_batch_size": 40, "max_steps": 1, "bf16": False}
    trainer = tiny_trainer(tmp_path, word_dropout=NEARLY_ALL, **options)
    model, (batch,) = trainer.model, trainer.get_train_dataloader()
    hidden = torch.full_like(batch["labels"], model.config.pad_token_id)
    hidden[:, 0] = model.config.decoder_start_token_id
    model.train()  # with smoothed labels
    with torch.no_grad():
        expected = model(**batch | {"decoder_input_ids": hidden}).loss.item()
        whole = model(**batch).loss.item()
    if fast:
        make_fast(model)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-3)
    assert whole != pytest.approx(expected, rel=1e-3)


def test_it_is_off_where_a_model_is_evaluated_and_gone_when_it_is_trained(tmp_path):
    trainer = tiny_trainer(tmp_path, word_dropout=NEARLY_ALL, max_steps=4, eval_strategy="steps", eval_steps=2)
    model, config = trainer.model, trainer.model.config
    seen = watch(model.get_decoder())
    trainer.train()
    evaluated = [ids for training, ids in seen if not training]
    assert evaluated
    longest = max(evaluated, key=lambda ids: ids.shape[1])
    assert (longest != config.pad_token_id).any(dim=0).all()
    del seen[:]
    model.train()(input_ids=torch.tensor([[5, 6]]), labels=torch.tensor([[7, 8, 9]]))
    assert seen[-1][1].tolist() == [[config.decoder_start_token_id, 7, 8]]


def test_a_run_that_was_broken_off_leaves_no_second_one(tmp_path):
    trainer = tiny_trainer(tmp_path, word_dropout=0.5, max_steps=3, save_strategy="no")
    hooks = trainer.model.get_decoder()._forward_pre_hooks

    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    whole_step, trainer.training_step = trainer.training_step, fail
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert len(hooks) == 1
    trainer.training_step = lambda *args, **kwargs: (counts.append(len(hooks)), whole_step(*args, **kwargs))[1]
    counts = []
    trainer.train()
    assert counts == [1, 1, 1]
    assert not hooks


def test_a_language_model_and_another_librarys_translator_have_it_too(tmp_path):
    rows = Dataset.from_dict({"input_ids": [[1, 5, 6, 7]] * 8, "labels": [[5, 6, 7, 8]] * 8})
    small = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    marian = MarianMTModel(
        MarianConfig(vocab_size=20, pad_token_id=0, decoder_start_token_id=1, eos_token_id=2, **small, **heads)
    )
    for model, trainer_class in ((decoder_only(), RecipeTrainer), (marian, RecipeSeq2SeqTrainer)):
        args = RecipeArguments(
            output_dir=str(tmp_path), word_dropout=NEARLY_ALL, max_steps=2, use_cpu=True, save_strategy="no"
        )
        seen = watch(model.get_decoder())
        trainer_class(model=model, args=args, train_dataset=rows).train()
        assert {tuple(row) for _, ids in seen for row in ids.tolist()} == {(1, 0, 0, 0)}


def test_another_word_dropout_is_another_run(tmp_path):
    tiny_trainer(tmp_path, word_dropout=0.1, max_steps=3).train()
    with pytest.raises(ValueError, match=r"word_dropout is 0\.2, and was 0\.1"):
        tiny_trainer(tmp_path, word_dropout=0.2, max_steps=6).train(resume_from_checkpoint=True)


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_a_rate_that_is_no_share_is_refused(rate, tmp_path):
    with pytest.raises(ValueError, match=rf"word_dropout={rate} must be at least 0 and less than 1"):
        RecipeArguments(output_dir=str(tmp_path), word_dropout=rate)


def test_a_model_that_cannot_have_it_is_refused_before_the_first_step(tmp_path):
    rows = Dataset.from_dict({"input_ids": [[1, 5, 6]] * 4, "labels": [0] * 4})
    args = RecipeArguments(output_dir=str(tmp_path), word_dropout=0.1, use_cpu=True)
    trainer = RecipeTrainer(model=encoder_only(), args=args, train_dataset=rows)
    with pytest.raises(ValueError, match=r"word_dropout=0\.1 needs a decoder, which \w+ has not"):
        trainer.train()
    no_padding = encoder_decoder()
    no_padding.config.pad_token_id = None
    trainer = RecipeSeq2SeqTrainer(model=no_padding, args=args, train_dataset=rows)
    with pytest.raises(ValueError, match=r"word_dropout=0\.1 hides words behind padding: set config\.pad_token_id"):
        trainer.train()
