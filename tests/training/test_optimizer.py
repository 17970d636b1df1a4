"""Compare initial weights, optimizer and schedule with the papers and with PyTorch."""

import shutil

import pytest
import torch
from torch.optim import AdamW, Muon

from family import decoder_only, encoder_decoder, encoder_only, right_padded
from tiny_training import tiny_trainer
from vanilla_transformer.training import optimizer as optimizer_module
from vanilla_transformer.training.optimizer import PaperSchedule, init_small, layer_matrices, muon_with_adam


def test_the_schedule_is_equation_3():
    schedule = PaperSchedule(d_model=512, warmup_steps=4000)
    for step in (1, 2, 3999, 4000, 4001, 100_000):
        assert schedule(step - 1) == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5))
    assert max(map(schedule, range(10_000))) == schedule(3999) == pytest.approx(6.99e-4, rel=1e-3)


def loss(model) -> torch.Tensor:
    torch.manual_seed(0)
    ids, mask = right_padded([5, 3])
    return model(input_ids=ids, attention_mask=mask, labels=ids).loss


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("make", [encoder_decoder, decoder_only, encoder_only])
def test_layer_matrices_returns_the_weight_matrices_of_all_layers(make, tied):
    model = make(tie_word_embeddings=tied)
    names = {name for name, p in model.named_parameters() if any(p is matrix for matrix in layer_matrices(model))}
    assert names == {name for name, p in model.named_parameters() if ".layers." in name and p.dim() == 2}


def test_optimizer_steps_equal_those_of_pytorchs_muon_and_adamw(monkeypatch):
    # PyTorch's Muon uses bfloat16 on every device.
    monkeypatch.setattr(optimizer_module, "has_bf16_matmul", lambda device: True)
    ours, theirs = (encoder_decoder(dropout=0.0).train() for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    optimizer = muon_with_adam(ours, 0.01, weight_decay=0.1, momentum=0.8)
    matrices = layer_matrices(theirs)
    others = [p for p in theirs.parameters() if not any(p is matrix for matrix in matrices)]
    parts = [
        Muon(matrices, lr=0.01, weight_decay=0.1, momentum=0.8, adjust_lr_fn="match_rms_adamw"),
        AdamW(others, lr=0.01, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0),
    ]
    for _ in range(3):
        for model, steps in ((ours, [optimizer]), (theirs, parts)):
            loss(model).backward()
            for part in steps:
                part.step()
                part.zero_grad()
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize(("bfloat16", "tolerance"), [(True, 0.1), (False, 1e-5)])
@pytest.mark.parametrize("shape", [(12, 12), (8, 20), (20, 8)])
def test_orthogonalized_matrices_keep_their_singular_vectors(monkeypatch, shape, bfloat16, tolerance):
    monkeypatch.setattr(optimizer_module, "has_bf16_matmul", lambda device: bfloat16)
    torch.manual_seed(0)
    matrices, (a, b, c) = torch.randn(2, *shape), (3.4445, -4.775, 2.0315)
    u, s, v = torch.linalg.svd(matrices.double(), full_matrices=False)
    s = s / s.norm(dim=-1, keepdim=True)
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    steps = optimizer_module.orthogonalize(matrices, (a, b, c), 5, 1e-7)
    torch.testing.assert_close(steps.double(), u @ torch.diag_embed(s) @ v, atol=tolerance, rtol=0)


def test_muon_and_adam_share_one_schedule_and_both_save_their_state():
    model = encoder_decoder()
    optimizer = muon_with_adam(model, 0.01)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    loss(model).backward()
    optimizer.step()
    torch.testing.assert_close(model.state_dict(), before, atol=0, rtol=0)
    assert len(optimizer.state_dict()["state"]) == len([p for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("dimensions", [1, 2])
def test_runs_that_train_only_vectors_or_only_matrices_can_be_resumed(dimensions, tmp_path):
    def trainer(steps: int):
        options = {"learning_rate": 0.01, "lr_scheduler_type": "constant", "max_steps": steps, "save_steps": 1}
        trainer = tiny_trainer(tmp_path, muon=True, **options)
        for name, weight in trainer.model.named_parameters():
            weight.requires_grad_(weight.dim() == dimensions and "embed" not in name and "lm_head" not in name)
        return trainer

    first = trainer(1)
    before = {name: weight.clone() for name, weight in first.model.named_parameters()}
    first.train()
    for name, weight in first.model.named_parameters():
        assert torch.equal(weight, before[name]) != weight.requires_grad, name
    second = trainer(2)
    second.train(resume_from_checkpoint=True)
    sizes = [len(group["params"]) for group in second.optimizer.param_groups]
    assert 0 in sizes and sum(sizes) == len(second.optimizer.state) == len(second.optimizer.state_dict()["state"])


def test_muon_uses_the_momentum_from_the_arguments(tmp_path):
    groups = tiny_trainer(tmp_path, muon=True, muon_momentum=0.8, learning_rate=0.01).create_optimizer().param_groups
    assert [group.get("momentum") for group in groups] == [0.8, None]
    with pytest.raises(ValueError, match=r"muon_momentum=1\.0 must be at least 0 and less than 1"):
        tiny_trainer(tmp_path, muon=True, muon_momentum=1.0)


def test_embedding_decay_equals_adamws_weight_decay_on_embeddings_only(tmp_path):
    options = {"muon": True, "learning_rate": 0.01, "lr_scheduler_type": "constant", "max_steps": 1, "dropout": 0.0}
    plain, decayed = (tiny_trainer(tmp_path, embedding_decay=decay, **options) for decay in (0.0, 0.5))
    before = {name: weight.clone() for name, weight in plain.model.named_parameters()}
    for trainer in (plain, decayed):
        trainer.train()
    others = dict(decayed.model.named_parameters())
    for name, weight in plain.model.named_parameters():
        decay = 0.5 if "embed_tokens" in name else 0.0
        torch.testing.assert_close(others[name], weight - 0.01 * decay * before[name])


def test_a_run_with_embedding_decay_resumes_exactly(tmp_path):
    options = {"muon": True, "learning_rate": 0.01, "embedding_decay": 0.5, "save_strategy": "steps", "save_steps": 2}
    whole = tiny_trainer(tmp_path / "whole", max_steps=4, **options)
    whole.train()
    tiny_trainer(tmp_path / "parts", max_steps=4, **options).train()
    shutil.rmtree(tmp_path / "parts" / "checkpoint-4")
    resumed = tiny_trainer(tmp_path / "parts", max_steps=4, **options)
    resumed.train(resume_from_checkpoint=True)
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict(), atol=0, rtol=0)
    another = tiny_trainer(tmp_path / "parts", max_steps=6, **(options | {"embedding_decay": 0.1}))
    with pytest.raises(ValueError, match=r"embedding_decay is 0\.1, and was 0\.5"):
        another.train(resume_from_checkpoint=True)


@pytest.mark.parametrize("options", [{"muon": True, "embedding_decay": -0.1}, {"embedding_decay": 0.1}])
def test_embedding_decay_that_is_negative_or_without_muon_raises_an_error(tmp_path, options):
    with pytest.raises(
        ValueError, match=f"embedding_decay={options['embedding_decay']} (must be at least 0|needs --muon)"
    ):
        tiny_trainer(tmp_path, **options)


def test_muon_with_fsdp_or_another_optimizer_raises_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"optim=adafactor .* muon=True: leave out one"):
        tiny_trainer(tmp_path, muon=True, optim="adafactor")
    with pytest.raises(ValueError, match="muon=True needs whole matrices"):
        tiny_trainer(tmp_path, muon=True, fsdp=True)


def test_small_initial_weights_are_normal_with_the_right_variance():
    """The variance is 2 / (5 fan_in) (Nguyen and Salazar 2019)."""
    model = init_small(encoder_decoder(d_model=256, d_ff=1024))
    matrices = layer_matrices(model)
    assert {matrix.shape[1] for matrix in matrices} == {256, 1024}
    for matrix in matrices:
        weights = matrix.flatten() * (2.5 * matrix.shape[1]) ** 0.5
        assert weights.std().item() == pytest.approx(1, rel=0.02)
        assert (weights.abs() > 2).float().mean().item() == pytest.approx(
            0.0455, abs=0.005
        )  # fraction of a normal distribution beyond two standard deviations


def test_small_initialisation_changes_only_layer_matrices():
    model = encoder_decoder()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    chosen = {id(matrix) for matrix in layer_matrices(init_small(model))}
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name]) == (id(weight) not in chosen), name
