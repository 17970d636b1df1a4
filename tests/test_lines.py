"""Line-based commands write one output line per input line, in order and as soon as possible."""

import json
import logging
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from family import decoder_only
from fresh_process import run_python, running
from saved_models import save_repeating, with_tokenizer, write
from vanilla_transformer.cli import evaluate, generate, translate
from vanilla_transformer.decoding import map_by_length


# Unicode white space, invisible marks, and control characters
BLANK = ["", " ", "\t", "\u3000\u00a0", "\u2002 \u200a", "\u200b", " \ufeff\u200e", "\x00\x1f"]


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> str:
    """Save a translator that generates a single letter."""
    return save_repeating(tmp_path_factory.mktemp("translator") / "model", p_end=0.16)[0]


@pytest.fixture(scope="module")
def writer(tmp_path_factory) -> str:
    """Save a language model that generates line breaks."""
    model, tokenizer = with_tokenizer(decoder_only, "causal", output_bias=True)
    with torch.no_grad():
        model.lm_head.bias[tokenizer.convert_tokens_to_ids("Ċ")] = 100
    return write(tmp_path_factory.mktemp("writer") / "model", model, tokenizer)


def run(command, model: str, lines: list[str], tmp_path: Path, *options: str) -> list[str]:
    """Run a command on a file of lines and return its output lines."""
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command.main(
        ["--model", model, "--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt"), *options]
    )
    written = (tmp_path / "out.txt").read_text(encoding="utf-8")
    assert written.splitlines() == written.split("\n")[:-1]
    return written.splitlines()


def test_line_breaks_in_a_translation_become_spaces_with_a_warning(tmp_path, caplog):
    model, _ = save_repeating(tmp_path / "model", p_end=0.16, letter="Ċ")
    found = run(translate, model, ["one", "two three"], tmp_path, "--length_penalty", "3", "--extra_tokens", "5")
    assert len(found) == 2 and not "".join(found).strip()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "line 1 has line breaks" in caplog.text


def test_line_breaks_in_a_continuation_become_spaces_with_a_warning(writer, tmp_path, caplog):
    found = run(generate, writer, ["one", "two"], tmp_path, "--max_new_tokens", "3", "--do_sample", "false")
    assert [line.split() for line in found] == [["one"], ["two"]]
    assert "line 1 has line breaks" in caplog.text


def test_an_argument_with_line_breaks_gives_one_output_line(translator, capsys):
    translate.main(["--model", translator, "one\ntwo", "three"])
    assert capsys.readouterr().out.count("\n") == 2


def test_blank_lines_stay_blank_and_in_place(translator, writer, tmp_path):
    lines = ["one", *BLANK, "two three"]
    for command, model in ((translate, translator), (generate, writer)):
        found = run(command, model, lines, tmp_path, "--batch_size", "2")
        assert len(found) == len(lines) and found[0] and found[-1]
        assert found[1:-1] == [""] * len(BLANK)


def test_a_file_of_blank_lines_gives_blank_lines(translator, tmp_path):
    assert run(translate, translator, BLANK, tmp_path) == [""] * len(BLANK)
    assert run(translate, translator, [], tmp_path) == []


@pytest.fixture
def limited(translator, tmp_path) -> str:
    """Save a copy of the translator whose maximum input length is ten tokens."""
    tokenizer = AutoTokenizer.from_pretrained(translator, model_max_length=10)
    for file in Path(translator).iterdir():
        (tmp_path / "limited").mkdir(exist_ok=True)
        (tmp_path / "limited" / file.name).write_bytes(file.read_bytes())
    return write(tmp_path / "limited", tokenizer)


def test_long_lines_are_truncated_with_a_warning(limited, tmp_path):
    long, options = "xyzw" * 1000, ["--length_penalty", "9"]  # the penalty makes outputs as long as allowed
    result = run_python(
        ["-m", "vanilla_transformer", "translate", "--model", limited, *options], input=f"one\n{long}\nthree\n"
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 3 and len(lines[1]) <= 10 + 50
    (warning,) = [line for line in result.stderr.splitlines() if "tokens" in line]
    assert warning.startswith("Line 2 has 4") and "is truncated to the first 10" in warning


def test_long_rows_are_truncated_for_scoring_with_a_warning(limited, tmp_path, caplog):
    rows = [{"source": text, "target": "x"} for text in ("one", "xyzw" * 1000, "three")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = evaluate.main(["--model", limited, "--test_file", str(tmp_path / "rows.jsonl")])
    assert math.isfinite(scores["test"]["chrf"])
    (warning,) = [text for record in caplog.records if "tokens" in (text := record.getMessage())]
    assert warning.startswith("Line 2 has 4") and "is truncated to the first 10" in warning


def test_long_prompts_are_truncated_with_a_warning(tmp_path, caplog):
    sizes = {"position_embedding": "learned", "max_position_embeddings": 12}
    folder = write(tmp_path / "model", *with_tokenizer(decoder_only, "causal", eos_token_id=None, **sizes))
    found = run(generate, folder, ["one", "two one " * 9 + "three", "two"], tmp_path, "--do_sample", "false")
    assert found[0].startswith("one") and found[2].startswith("two")
    assert "three" in found[1] and not found[1].strip().startswith("two one two one two one")
    assert [record.getMessage().split(" has ")[0] for record in caplog.records] == ["Line 2"]


def test_first_results_are_written_before_all_input_is_processed(translator, tmp_path):
    (tmp_path / "in.txt").write_text("one two\n" * 100_000)
    options = ["--model", translator, "--input", str(tmp_path / "in.txt"), "--batch_size", "1"]
    with running(["-m", "vanilla_transformer", "translate", *options]) as (process, output):
        assert output.readline().strip()
        assert process.poll() is None
        process.kill()


def test_batches_group_similar_lengths_and_results_keep_their_order():
    texts = ["a", "bbbb", "cc", "", "dddd", "e", "ff", " ", "g"]
    calls = []

    def shout(batch: list[str]) -> list[str]:
        calls.append(batch)
        return [text.upper() for text in batch]

    results = map_by_length(shout, texts, 2, "shouting")
    assert next(results) == "A" and len(calls) == 1
    assert list(results) == [text.strip().upper() for text in texts[1:]]
    assert sorted(map(sorted, calls)) == [["a", "e"], ["bbbb", "dddd"], ["cc", "ff"], ["g"]]
    assert list(map_by_length(shout, ["x"] * 100, 1, "shouting")) == ["X"] * 100
