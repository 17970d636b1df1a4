"""Test that random configs, inputs, files and command lines give the correct result or a clear error.

The expected result comes from an independent computation: a single sequence instead of a padded batch, no cache, or
eager attention instead of a faster implementation. Acceptable errors are raised deliberately, by this project or by
the config validation of transformers, and name the faulty value. Any other error is a failure, such as an IndexError
or a RuntimeError from PyTorch. `make test` runs 100 fixed examples; the slow tests run 2,000 random ones.
"""

import gzip
import io
import json
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from family import SIZES, VOCAB, decoder_only, encoder_decoder, encoder_only
from fresh_process import ROOT
from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerDecoderConfig,
    VanillaTransformerEncoderConfig,
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForMaskedLM,
    VanillaTransformerForQuestionAnswering,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)
from vanilla_transformer.__main__ import COMMANDS, command
from vanilla_transformer.cli.errors import run_command
from vanilla_transformer.data import DataArguments, load_splits
from vanilla_transformer.loading import load_model
from vanilla_transformer.modeling_vanilla_transformer import CACHE
from vanilla_transformer.tasks import all_tasks


Draw = Callable[[st.SearchStrategy], Any]

MODELS = {
    VanillaTransformerConfig: VanillaTransformerForConditionalGeneration,
    VanillaTransformerDecoderConfig: VanillaTransformerForCausalLM,
    VanillaTransformerEncoderConfig: VanillaTransformerForMaskedLM,
}


@contextmanager
def only_clear_errors(names: tuple[str, ...]) -> Iterator[None]:
    """Accept errors that were raised deliberately and mention one of `names`."""
    try:
        yield
    except (ValueError, TypeError, OSError, StrictDataclassError) as error:
        raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
        ours = ROOT in Path(raised_in).parents and ".venv" not in raised_in
        if not (ours or isinstance(error, StrictDataclassError | OSError)) or not any(
            name in str(error) for name in names
        ):
            raise AssertionError(f"This error does not tell what to do about {names}.") from error


# ---------------------------------------------------------------------------------------------------------------------
# Configs
# ---------------------------------------------------------------------------------------------------------------------

GOOD_FIELDS = {
    "vocab_size": st.integers(1, 40),
    "d_model": st.sampled_from([4, 6, 8]),
    "num_heads": st.sampled_from([1, 2]),
    "d_k": st.none() | st.integers(1, 5),
    "d_v": st.none() | st.integers(1, 5),
    "d_ff": st.integers(1, 9),
    "activation_function": st.sampled_from(["relu", "gelu", "silu"]),
    "norm_position": st.sampled_from(["post", "pre"]),
    "position_embedding": st.sampled_from(["sinusoidal", "learned"]),
    "sinusoid_layout": st.sampled_from(["interleaved", "half_split"]),
    "sinusoid_frequencies": st.sampled_from(["paper", "tensor2tensor"]),
    "position_offset": st.integers(0, 3),
    "normalize_embedding": st.booleans(),
    "max_position_embeddings": st.integers(16, 20),
    "scale_embedding": st.booleans(),
    "attention_bias": st.booleans(),
    "output_bias": st.booleans(),
    "tie_word_embeddings": st.booleans(),
    "label_smoothing": st.sampled_from([0, 0.1, 1]),
    "sliding_window": st.none() | st.integers(2, 6) | st.just(2**31 - 1),
}
FAMILY_FIELDS = {
    VanillaTransformerConfig: {
        "encoder_layers": st.integers(1, 2),
        "decoder_layers": st.integers(1, 2),
        "share_encoder_decoder_embeddings": st.booleans(),
        "decoder_d_ff": st.none() | st.integers(1, 9),
    },
    VanillaTransformerDecoderConfig: {"num_layers": st.integers(1, 2)},
    VanillaTransformerEncoderConfig: {
        "num_layers": st.integers(1, 2),
        "type_vocab_size": st.integers(0, 3),
        "mlm_head_transform": st.booleans(),
        "pooling": st.sampled_from(["mean", "first", "max"]),
    },
}
ODD_VALUES = st.sampled_from(
    [-1, 0, 2**31, 2**63, 10**30, 0.5, -0.1, float("nan"), float("inf"), "8", "", None, [], {}]
)


def draw_config(draw: Draw, family: type, odd: int = 0) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Draw the fields of a small config. At most `odd` of them get arbitrary values; return their names, too."""
    strategies = GOOD_FIELDS | FAMILY_FIELDS[family]
    chosen = draw(st.sets(st.sampled_from(sorted(strategies))))
    required = {"vocab_size", "d_model", "num_heads", "d_ff"} | {name for name in strategies if "layers" in name}
    fields = {name: draw(strategies[name]) for name in sorted(chosen | required)}
    names = draw(st.lists(st.sampled_from(sorted([*strategies, "dropout", "num_labels"])), max_size=odd))
    return fields | {name: draw(ODD_VALUES) for name in names}, tuple(names)


def configs(draw: Draw) -> None:
    family = draw(st.sampled_from(list(MODELS)))
    fields, odd = draw_config(draw, family, odd=2)
    with only_clear_errors((*odd, "num_heads")):  # an arbitrary value may make d_model indivisible by num_heads
        config = family(**fields)
        assert family.from_dict(json.loads(config.to_json_string())).to_dict() == config.to_dict()
        ids = torch.zeros(2, 3, dtype=torch.long)
        extra = {"decoder_input_ids": ids} if config.is_encoder_decoder else {}
        if 2**31 not in fields.values():
            assert MODELS[family](config)(ids, **extra).logits.shape == (2, 3, config.vocab_size)


# ---------------------------------------------------------------------------------------------------------------------
# Correct results
# ---------------------------------------------------------------------------------------------------------------------


def padded(draw: Draw, rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return rows of ids as a batch with left or right padding, and its mask; both are (batch, length)."""
    length = max(map(len, rows)) + draw(st.integers(0, 2))
    left = draw(st.booleans())
    pads = [(length - len(row), 0) if left else (0, length - len(row)) for row in rows]
    ids = [nn.functional.pad(row, pad) for row, pad in zip(rows, pads, strict=True)]
    mask = [nn.functional.pad(torch.ones_like(row), pad) for row, pad in zip(rows, pads, strict=True)]
    return torch.stack(ids), torch.stack(mask)


def draw_rows(draw: Draw, count: int, vocab_size: int) -> list[Tensor]:
    return [torch.tensor(draw(st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=7))) for _ in range(count)]


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=2e-4, rtol=2e-4)


def every_form_of_attention_with_and_without_padding_and_cache(draw: Draw) -> None:
    family = draw(st.sampled_from(list(MODELS)))
    fields, _ = draw_config(draw, family)
    torch.manual_seed(draw(st.integers(0, 99)))
    model = MODELS[family](family(**fields, dropout=0.0)).eval()
    count = draw(st.integers(1, 3))
    rows = draw_rows(draw, count, model.config.vocab_size)
    ids, mask = padded(draw, rows)
    inputs = {"input_ids": ids, "attention_mask": mask}
    alone = [{"input_ids": row[None]} for row in rows]
    if model.config.is_encoder_decoder:
        targets = draw_rows(draw, count, model.config.vocab_size)
        target_ids, mask = padded(draw, targets)
        inputs |= {"decoder_input_ids": target_ids, "decoder_attention_mask": mask}
        alone = [row | {"decoder_input_ids": target[None]} for row, target in zip(alone, targets, strict=True)]
        rows = targets
    labels = draw(st.integers(0, 9)) + torch.zeros_like(mask)
    inputs["labels"] = labels % model.config.vocab_size

    model.set_attn_implementation("eager")
    expected = [model(**row).logits[0] for row in alone]
    loss = model(**inputs).loss
    for implementation in ("eager", "sdpa", "packed_sdpa"):
        model.set_attn_implementation(implementation)
        outputs = model(**inputs)
        for i in range(count):
            close(outputs.logits[i][mask[i].bool()], expected[i])
        close(outputs.loss, loss)
        if model.can_generate():
            for i, row in enumerate(alone):
                close(step_by_step(model, row), expected[i])


def step_by_step(model: nn.Module, row: dict[str, Tensor]) -> Tensor:
    """Return the logits (length, vocab) of one sequence, computed one token at a time with a cache."""
    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    state, logits = {}, []
    for token in row[name].split(1, dim=1):
        outputs = model(**row | {name: token}, **state, use_cache=True)
        state[CACHE] = outputs[CACHE]
        logits.append(outputs.logits[0])
    return torch.cat(logits)


# ---------------------------------------------------------------------------------------------------------------------
# Invalid inputs
# ---------------------------------------------------------------------------------------------------------------------


@cache
def ready_models() -> dict[str, nn.Module]:
    heads = (
        VanillaTransformerForMaskedLM,
        VanillaTransformerForQuestionAnswering,
        VanillaTransformerForSequenceClassification,
        VanillaTransformerForTokenClassification,
    )
    return {
        "translator": encoder_decoder(),
        "language model": decoder_only(),
        "window": decoder_only(sliding_window=3),
        "learned positions": encoder_only(position_embedding="learned", max_position_embeddings=5),
    } | {head.__name__: encoder_only(head, num_labels=3, type_vocab_size=2) for head in heads}


DTYPES = (torch.int64, torch.int32, torch.uint8, torch.int16, torch.bool, torch.float32, torch.bfloat16)
ODD_SHAPES = st.lists(st.integers(0, 6), max_size=4)


def odd_tensor(draw: Draw, shape: tuple[int, ...]) -> Any:
    """Draw a tensor, usually of integers with the right shape, or sometimes an object that is not a tensor."""
    shape = draw(st.just(shape) | st.just(shape) | ODD_SHAPES)
    values = draw(st.sampled_from([(0, 1), (0, 2), (0, VOCAB - 1), (-101, 60), (-(2**40), 2**40)]))
    tensor = torch.randint(values[0], values[1] + 1, tuple(shape)).to(draw(st.sampled_from(DTYPES[:1] * 6 + DTYPES)))
    return draw(st.sampled_from([tensor] * 9 + [tensor.tolist(), "a text", 3]))


def odd_inputs(draw: Draw) -> None:
    torch.manual_seed(draw(st.integers(0, 99)))
    name = draw(st.sampled_from(sorted(ready_models())))
    model = ready_models()[name].train(draw(st.booleans()))
    model.set_attn_implementation(draw(st.sampled_from(["eager", "sdpa", "packed_sdpa"])))
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 6)))
    shapes = {"input_ids": shape, "attention_mask": shape, "position_ids": shape, "labels": shape}
    if "translator" in name:
        shapes |= {"decoder_input_ids": shape, "decoder_attention_mask": shape, "decoder_position_ids": shape}
    if "For" in name:
        shapes |= {"token_type_ids": shape, "inputs_embeds": (*shape, SIZES["d_model"])}
    if "SequenceC" in name:
        shapes["labels"] = draw(st.sampled_from([(shape[0],), (shape[0], 3), (shape[0], 1)]))
    if "Question" in name:
        del shapes["labels"]
        shapes |= {"start_positions": shape[:1], "end_positions": shape[:1]}
    given_names = draw(st.sets(st.sampled_from(sorted(shapes)), max_size=4))
    inputs = {each: odd_tensor(draw, shapes[each]) for each in sorted(given_names)}
    if draw(st.booleans()):
        inputs["input_ids"] = torch.randint(0, VOCAB, shape)
    with only_clear_errors((*shapes, "inputs_embeds")):
        outputs = model(**inputs)
        rows, columns = (inputs.get("input_ids") if "input_ids" in inputs else inputs["inputs_embeds"]).shape[:2]
        scores = outputs.start_logits if "Question" in name else outputs.logits
        assert len(scores) == rows and scores.isfinite().all()
        assert "labels" not in inputs or outputs.loss.isfinite()
        assert "SequenceC" in name or "translator" in name or scores.shape[1] == columns


# ---------------------------------------------------------------------------------------------------------------------
# Data files
# ---------------------------------------------------------------------------------------------------------------------

TASKS = {task.name: task.data for task in all_tasks()}
TEXTS = st.text(max_size=8) | st.sampled_from(["one", "two words", "\ufeff", "", " ", "\x00", "3"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | TEXTS,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(TEXTS, children, max_size=2),
    max_leaves=4,
)


def draw_table(draw: Draw, columns: list[str]) -> bytes:
    values = draw(st.sampled_from([TEXTS, TEXTS, VALUES]))
    rows = draw(st.lists(st.fixed_dictionaries(dict.fromkeys(columns, values)), max_size=4))
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def data_files(draw: Draw) -> None:
    task = draw(st.sampled_from(sorted(TASKS)))
    columns = sorted(TASKS[task].columns)
    content = draw(st.binary(max_size=40) | st.text(max_size=40).map(str.encode) | st.just(draw_table(draw, columns)))
    kind = draw(st.sampled_from(["jsonl", "jsonl", "json", "csv", "txt", "parquet"]))
    if kind == "csv" and draw(st.booleans()):
        content = ",".join(columns).encode() + b"\n" + content
    zipped = draw(st.integers(0, 3))  # 1: gzipped, 2: truncated gzip, 3: not gzipped in spite of its name
    if zipped:
        content = [content, gzip.compress(content), gzip.compress(content)[:-4], content][zipped]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"rows.{kind}{'.gz' if zipped else ''}"
        path.write_bytes(content)
        with only_clear_errors((path.name,)):
            splits = load_splits(DataArguments(train_file=[str(path)]), TASKS[task])
            for rows in splits.values():
                assert set(TASKS[task].columns) == set(rows.column_names)
                assert len(list(rows)) == len(rows)


# ---------------------------------------------------------------------------------------------------------------------
# Saved folders and command lines
# ---------------------------------------------------------------------------------------------------------------------


@contextmanager
def damaged_model(draw: Draw) -> Iterator[Path]:
    """Save a language model with one damaged file: truncated, replaced, or with an arbitrary config value."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        decoder_only().save_pretrained(folder)
        path = folder / draw(st.sampled_from(["config.json", "model.safetensors", "generation_config.json"]))
        content = path.read_bytes()
        if path.name == "config.json" and draw(st.booleans()):
            fields = json.loads(content)
            fields[draw(st.sampled_from(sorted(GOOD_FIELDS)))] = draw(ODD_VALUES)
            content = json.dumps(fields).encode()
        elif draw(st.booleans()):
            content = content[: draw(st.integers(0, len(content)))]
        else:
            content = b"{" + draw(st.binary(max_size=20))
        path.write_bytes(content)
        yield folder


def saved_folders(draw: Draw) -> None:
    with damaged_model(draw) as folder, only_clear_errors((str(folder), "must be", *GOOD_FIELDS)):
        model = load_model(folder)
        assert model(torch.tensor([[3, 4]])).logits.isfinite().all()


WORDS = (
    "--model",
    "--num_beams",
    "--batch_size",
    "--max_new_tokens",
    "--output",
    "--to",
    "--layer",
    "--example",
    "--hlep",
)


def command_lines(draw: Draw) -> None:
    name = draw(st.sampled_from([*(name for name in COMMANDS if name != "push"), "trainslate", "--help"]))
    with damaged_model(draw) as folder, chdir(folder.parent), pytest.MonkeyPatch.context() as patch:
        (folder / "config.json").write_text("{")  # the model is invalid, so that every command ends early
        values = st.sampled_from([str(folder), "./nowhere", "-1", "0", "many", "", "--help"])
        words = draw(st.lists(st.sampled_from(WORDS) | values, max_size=5))
        patch.setattr("sys.argv", ["vanilla-transformer", name, *words])
        output, errors, code = io.StringIO(), io.StringIO(), None
        try:
            with redirect_stdout(output), redirect_stderr(errors):
                run_command(command)
        except SystemExit as end:
            code = end.code
    assert code in (None, 0, 2)
    assert code != 2 or "error: " in errors.getvalue().splitlines()[-1], errors.getvalue()


# ---------------------------------------------------------------------------------------------------------------------
# Tests
# ---------------------------------------------------------------------------------------------------------------------

EXAMPLES = {
    configs: 20,
    every_form_of_attention_with_and_without_padding_and_cache: 20,
    odd_inputs: 25,
    data_files: 15,
    saved_folders: 10,
    command_lines: 10,
}


def run(prove: Callable[[Draw], None], **options: Any) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    options |= {"deadline": None, "database": None, "print_blob": True, "suppress_health_check": checks}
    settings(**options)(given(data=st.data())(lambda data: prove(data.draw)))()


@pytest.mark.parametrize("prove", EXAMPLES, ids=lambda prove: prove.__name__)
def test_random_examples_give_a_correct_result_or_a_clear_error(prove):
    run(prove, max_examples=EXAMPLES[prove], derandomize=True)


@pytest.mark.slow
@pytest.mark.parametrize("prove", EXAMPLES, ids=lambda prove: prove.__name__)
def test_2000_random_examples_give_a_correct_result_or_a_clear_error(prove):
    run(prove, max_examples=20 * EXAMPLES[prove])
