"""Test averaging checkpoints, and selecting the checkpoints to average."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from family import decoder_only, encoder_decoder, encoder_only
from vanilla_transformer import (
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)
from vanilla_transformer.cli.average import main
from vanilla_transformer.data import train_tokenizer
from vanilla_transformer.training.averaging import average_checkpoints, load_weights, save_average
from vanilla_transformer.training.checkpoints import RUN_FILE, complete_checkpoints


def checkpoint(folder: Path, value: float, **extra: torch.Tensor) -> Path:
    folder.mkdir(parents=True)
    save_file({"weight": torch.full((2,), float(value)), **extra}, folder / "model.safetensors")
    (folder / "trainer_state.json").write_text("{}")
    torch.save({}, folder / "optimizer.pt")
    (folder / "config.json").write_text(json.dumps({"dropout": value}))
    return folder


def three_checkpoints(run: Path) -> list[Path]:
    return [checkpoint(run / f"checkpoint-{step}", step) for step in (5, 10, 30)]


def test_averaging_checkpoints_writes_a_model_folder_like_the_last_one(tmp_path):
    folders = three_checkpoints(tmp_path)
    torch.testing.assert_close(average_checkpoints(folders)["weight"], torch.full((2,), 15.0))
    save_average(folders, tmp_path / "mean")
    assert sorted(file.name for file in (tmp_path / "mean").iterdir()) == ["config.json", "model.safetensors"]
    assert json.loads((tmp_path / "mean" / "config.json").read_text()) == {"dropout": 30}
    with pytest.raises(ValueError, match="mean exists"):
        save_average(folders, tmp_path / "mean")


def test_the_average_of_one_checkpoint_is_that_checkpoint(tmp_path):
    weight = torch.randn(3, 4, dtype=torch.bfloat16)
    mean = average_checkpoints([checkpoint(tmp_path / "checkpoint-1", 0.1, half=weight)])
    assert torch.equal(mean["half"], weight) and mean["half"].dtype == torch.bfloat16
    assert torch.equal(mean["weight"], torch.full((2,), 0.1))


def test_half_precision_weights_are_summed_in_full_precision(tmp_path):
    # bfloat16 cannot represent odd integers above 256, so a sum in bfloat16 would stay at 256.
    folders = [
        checkpoint(tmp_path / f"checkpoint-{i}", 0, half=torch.tensor([value], dtype=torch.bfloat16))
        for i, value in enumerate((256.0, 1.0, 1.0, 1.0, 1.0))
    ]
    assert average_checkpoints(folders)["half"].item() == 52.0  # 260 / 5; 256 / 5 would be 51.25


@pytest.mark.parametrize("shards", ["one file", "sharded"])
def test_averaged_checkpoints_load_as_a_model(shards, tmp_path):
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
    assert stored.keys() == load_weights(folders[0]).keys() < states[0].keys()  # tied weights are saved once
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "mean").state_dict()
    for name in states[0]:
        torch.testing.assert_close(loaded[name], (states[0][name] + states[1][name]) / 2)


def test_averaging_different_models_raises_an_error_that_names_the_difference(tmp_path):
    first, other = checkpoint(tmp_path / "first", 1), checkpoint(tmp_path / "other", 1, bias=torch.zeros(1))
    with pytest.raises(ValueError, match="differ in: bias"):
        average_checkpoints([first, other])
    wide = checkpoint(tmp_path / "wide", 1, bias=torch.zeros(2))
    with pytest.raises(ValueError, match=r"bias has shape \(2,\) in .*wide, and \(1,\) in .*other"):
        save_average([other, wide], tmp_path / "mean")
    assert not list(tmp_path.glob("mean*"))


def tagger(classes: list[str]) -> VanillaTransformerForTokenClassification:
    return encoder_only(VanillaTransformerForTokenClassification, id2label=dict(enumerate(classes)))


@pytest.mark.parametrize(
    ("make", "other", "said"),
    [
        (lambda: decoder_only(num_heads=4), lambda: decoder_only(num_heads=2), "num_heads is 2, and was 4"),
        (lambda: tagger(["noun", "verb"]), lambda: tagger(["verb", "noun"]), "id2label is {'0': 'verb', '1': 'noun'}"),
        (
            lambda: encoder_only(VanillaTransformerForSequenceClassification),
            lambda: encoder_only(VanillaTransformerForTokenClassification),
            "architectures is ['VanillaTransformerForTokenClassification'], and was "
            "['VanillaTransformerForSequenceClassification']",
        ),
        (
            lambda: train_tokenizer(["one two"] * 3, "causal", vocab_size=260),
            lambda: train_tokenizer(["uno dos"] * 3, "causal", vocab_size=260),
            "the tokenizer is another one",
        ),
    ],
    ids=["heads", "classes", "task", "tokens"],
)
def test_different_models_with_equal_weight_shapes_are_not_averaged(make, other, said, tmp_path):
    folders = [str(tmp_path / name) for name in ("first", "second")]
    for folder, part in zip(folders, (make, other), strict=True):
        # Different dropout rates are allowed.
        decoder_only(dropout=0.1 if part is make else 0.3).save_pretrained(folder)
        part().save_pretrained(folder)
    command = ["--output", str(tmp_path / "mean"), "--checkpoints"]
    with pytest.raises(ValueError, match=f"second is another model than .*first: .*{re.escape(said)}"):
        main([*command, *folders])
    make().save_pretrained(folders[1])
    main([*command, *folders])


def test_configs_with_and_without_an_equal_target_vocab_size_are_averaged(tmp_path):
    for name in ("before", "now"):
        encoder_decoder().save_pretrained(tmp_path / name)
    file = tmp_path / "before/config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps(settings | {"target_vocab_size": settings["vocab_size"]}))
    folders = [str(tmp_path / name) for name in ("before", "now")]
    for i, order in enumerate((folders, folders[::-1])):
        main(["--output", str(tmp_path / f"mean-{i}"), "--checkpoints", *order])
    encoder_decoder(share_encoder_decoder_embeddings=False, target_vocab_size=7).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="share_encoder_decoder_embeddings is False, and was True"):
        main(["--output", str(tmp_path / "mean"), "--checkpoints", *folders, str(tmp_path / "other")])


def test_an_average_cannot_be_written_into_the_last_checkpoint(tmp_path):
    folder = checkpoint(tmp_path / "last", 1)
    with pytest.raises(ValueError, match=r"avg is inside .*last, whose files are copied"):
        main(["--checkpoints", str(folder), str(folder), "--output", str(folder / "avg")])
    assert not (folder / "avg").exists()


def test_error_for_truncated_or_missing_checkpoints_names_them(tmp_path):
    whole, cut = checkpoint(tmp_path / "whole", 1), checkpoint(tmp_path / "cut", 1)
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"cut/model\.safetensors is damaged or truncated"):
        main(["--checkpoints", str(whole), str(cut), "--output", str(tmp_path / "mean")])
    with pytest.raises(FileNotFoundError, match="gone: there is no such folder"):
        main(["--checkpoints", str(whole), str(tmp_path / "gone"), "--output", str(tmp_path / "mean")])
    assert not list(tmp_path.glob("*mean*"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_averaging_weights_that_are_not_finite_raises_an_error(value, tmp_path):
    folders = [checkpoint(tmp_path / "first", 1), checkpoint(tmp_path / "second", value)]
    with pytest.raises(ValueError, match=r"weight has values that are not finite in .*second"):
        main(["--checkpoints", *map(str, folders), "--output", str(tmp_path / "mean")])
    assert not list(tmp_path.glob("*mean*"))


def test_averaging_reads_the_same_weight_file_as_from_pretrained(tmp_path):
    """Saving a single weight file over a sharded model leaves the shards' index file behind."""
    decoder_only().save_pretrained(tmp_path / "model", max_shard_size="20KB")
    model = decoder_only()
    model.save_pretrained(tmp_path / "model")
    assert (tmp_path / "model/model.safetensors.index.json").exists()
    for name, weight in load_weights(tmp_path / "model").items():
        assert torch.equal(weight, model.state_dict()[name])


def test_the_command_averages_the_last_checkpoints_of_a_run_or_the_given_checkpoints(tmp_path):
    folders = three_checkpoints(tmp_path / "run")
    main(["--run", str(tmp_path / "run"), "--last", "2", "--output", str(tmp_path / "last")])
    assert load_file(tmp_path / "last" / "model.safetensors")["weight"].tolist() == [20, 20]
    main(["--checkpoints", str(folders[0]), str(folders[2]), "--output", str(tmp_path / "given")])
    assert load_file(tmp_path / "given" / "model.safetensors")["weight"].tolist() == [17.5, 17.5]
    with pytest.raises(ValueError, match="run has only 3 of --last 4 complete checkpoints"):
        main(["--run", str(tmp_path / "run"), "--last", "4", "--output", str(tmp_path / "more")])
    (folders[2] / RUN_FILE).write_text('{"interrupted": true}')  # saved on SIGTERM
    main(["--run", str(tmp_path / "run"), "--last", "2", "--output", str(tmp_path / "uninterrupted")])
    assert load_file(tmp_path / "uninterrupted" / "model.safetensors")["weight"].tolist() == [7.5, 7.5]
    with pytest.raises(ValueError, match="either --run or --checkpoints"):
        main(["--output", str(tmp_path / "more")])


@pytest.mark.parametrize("size", [40, -1], ids=["in its header", "by one byte"])
def test_an_incomplete_checkpoint_is_skipped(size, tmp_path):
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
