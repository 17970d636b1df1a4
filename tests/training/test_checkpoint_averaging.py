"""The mean of checkpoints, and which checkpoints count."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from family import encoder_decoder
from vanilla_transformer.commands.average import main
from vanilla_transformer.training.averaging import average_checkpoints, load_weights, save_average
from vanilla_transformer.training.checkpoints import complete_checkpoints


def checkpoint(folder: Path, value: float, **extra: torch.Tensor) -> Path:
    folder.mkdir(parents=True)
    save_file({"weight": torch.full((2,), float(value)), **extra}, folder / "model.safetensors")
    (folder / "trainer_state.json").write_text("{}")
    torch.save({}, folder / "optimizer.pt")
    (folder / "config.json").write_text(json.dumps({"value": value}))
    return folder


def three_checkpoints(run: Path) -> list[Path]:
    return [checkpoint(run / f"checkpoint-{step}", step) for step in (5, 10, 30)]


def test_checkpoints_are_averaged_into_a_model_folder_like_the_last(tmp_path):
    folders = three_checkpoints(tmp_path)
    torch.testing.assert_close(average_checkpoints(folders)["weight"], torch.full((2,), 15.0))
    save_average(folders, tmp_path / "mean")
    assert sorted(file.name for file in (tmp_path / "mean").iterdir()) == ["config.json", "model.safetensors"]
    assert json.loads((tmp_path / "mean" / "config.json").read_text()) == {"value": 30}
    with pytest.raises(ValueError, match="mean exists"):
        save_average(folders, tmp_path / "mean")


def test_the_mean_of_one_checkpoint_is_that_checkpoint(tmp_path):
    weight = torch.randn(3, 4, dtype=torch.bfloat16)
    mean = average_checkpoints([checkpoint(tmp_path / "checkpoint-1", 0.1, half=weight)])
    assert torch.equal(mean["half"], weight) and mean["half"].dtype == torch.bfloat16
    assert torch.equal(mean["weight"], torch.full((2,), 0.1))


def test_half_precision_weights_are_added_up_in_full_precision(tmp_path):
    # 256 is the last whole number that bfloat16 counts up to in steps of one: a sum in it would stay there.
    folders = [
        checkpoint(tmp_path / f"checkpoint-{i}", 0, half=torch.tensor([value], dtype=torch.bfloat16))
        for i, value in enumerate((256.0, 1.0, 1.0, 1.0, 1.0))
    ]
    assert average_checkpoints(folders)["half"].item() == 52.0  # 260 / 5; 256 / 5 would be 51.25


@pytest.mark.parametrize("shards", ["one file", "sharded"])
def test_the_mean_of_models_loads_as_a_model(shards, tmp_path):
    folders, states = [], []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = encoder_decoder()
        folders.append(tmp_path / f"checkpoint-{seed}")
        model.save_pretrained(folders[-1], max_shard_size="20KB" if shards == "sharded" else "1GB")
        states.append(model.state_dict())
    assert (folders[0] / "model.safetensors.index.json").exists() == (shards == "sharded")
    save_average(folders, tmp_path / "mean")
    assert len(list((tmp_path / "mean").glob("*.safetensors*"))) == 1
    stored = load_file(tmp_path / "mean" / "model.safetensors")
    assert stored.keys() == load_weights(folders[0]).keys() < states[0].keys()  # the shared matrix is there once
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "mean").state_dict()
    for name in states[0]:
        torch.testing.assert_close(loaded[name], (states[0][name] + states[1][name]) / 2)


def test_checkpoints_of_different_models_are_refused_by_name(tmp_path):
    first, other = checkpoint(tmp_path / "first", 1), checkpoint(tmp_path / "other", 1, bias=torch.zeros(1))
    with pytest.raises(ValueError, match="differ in: bias"):
        average_checkpoints([first, other])
    wide = checkpoint(tmp_path / "wide", 1, bias=torch.zeros(2))
    with pytest.raises(ValueError, match=r"bias has shape \(2,\) in .*wide, and \(1,\) in .*other"):
        save_average([other, wide], tmp_path / "mean")
    assert not list(tmp_path.glob("mean*"))


def test_the_command_averages_a_runs_last_checkpoints_or_those_it_is_given(tmp_path):
    folders = three_checkpoints(tmp_path / "run")
    main(["--run", str(tmp_path / "run"), "--last", "2", "--output", str(tmp_path / "last")])
    assert load_file(tmp_path / "last" / "model.safetensors")["weight"].tolist() == [20, 20]
    main(["--checkpoints", str(folders[0]), str(folders[2]), "--output", str(tmp_path / "given")])
    assert load_file(tmp_path / "given" / "model.safetensors")["weight"].tolist() == [17.5, 17.5]
    with pytest.raises(ValueError, match="run holds 3 complete checkpoints, fewer than --last 4"):
        main(["--run", str(tmp_path / "run"), "--last", "4", "--output", str(tmp_path / "more")])
    with pytest.raises(ValueError, match="either --run or --checkpoints"):
        main(["--output", str(tmp_path / "more")])


@pytest.mark.parametrize("size", [40, -1], ids=["in its header", "by one byte"])
def test_a_half_written_checkpoint_is_passed_over(size, tmp_path):
    whole = checkpoint(tmp_path / "checkpoint-9", 1)
    cut = checkpoint(tmp_path / "checkpoint-10", 1)
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:size])
    unmarked = checkpoint(tmp_path / "checkpoint-11", 1)
    (unmarked / "trainer_state.json").unlink()
    half_state = checkpoint(tmp_path / "checkpoint-12", 1)
    (half_state / "trainer_state.json").write_text('{"epoch": 1')
    marked = checkpoint(tmp_path / "checkpoint-13", 1)
    (marked / "checkpoint-is-incomplete.txt").touch()
    assert complete_checkpoints(tmp_path) == [whole]
