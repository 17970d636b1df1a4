"""Test that wrong use of a command prints one line on stderr that helps to correct it, and exits with code 2."""

import re
import sys

import pytest

import figures
from family import encoder_decoder, encoder_only
from saved_models import with_tokenizer, write
from vanilla_transformer import VanillaTransformerForSequenceClassification
from vanilla_transformer.__main__ import main


WRONG = [
    # --- misspelt options and values
    ("train translation --max_stepz 3", "no option --max_stepz; did you mean --max_steps?"),
    ("train translation --train_fil x.jsonl --outputdir x", "no option --outputdir; did you mean --output_dir?"),
    ("train tagging --learningrate=1", "no option --learningrate=1; did you mean --learning_rate?"),
    ("train translation --max_steps three", "argument --max_steps: invalid int value: 'three'"),
    ("train translation --preset tinny", "no preset 'tinny'; did you mean tiny?"),
    ("train translation --preset huge", "no preset 'huge'; choose one of: base, big"),
    ("train translation --norm_position per", "invalid choice: 'per' (choose from"),
    ("train translation --eval_strategy step", "invalid choice: 'step'"),
    ("train translation some words", "no option some words; see --help"),
    ("translate --modell tr", "no option --modell; did you mean --model?"),
    ("generate --model tr --temprature 1", "no option --temprature; did you mean --temperature?"),
    ("walk --example tody", "invalid choice: 'tody'"),
    ("export --source tr --output x --to tflite", "invalid choice: 'tflite'"),
    # --- missing arguments
    ("translate Hello --input one.txt", "Give texts or --input one.txt, not both"),
    ("generate --model tr Hello --input one.txt", "Give texts or --input one.txt, not both"),
    ("generate --model tr caf\udce9", r"'caf\udce9' is not UTF-8 (at character 4)"),
    ("train translation recipe.yaml", "recipe.yaml"),
    ("generate", "required: --model"),
    ("evaluate", "required: --model"),
    ("evaluate --per_device_eval_batch_size 8", "required: --model"),
    ("import --output x", "required: --source"),
    ("average --output x", "Give either --run or --checkpoints"),
    ("walk --text caf\udce9", r"'caf\udce9' is not UTF-8 (at character 4)"),
    ("walk --model tr", "--model tr needs a sentence: give --text"),
    # --- missing models, or models for another task
    ("translate --model missing", "missing: there is no such folder"),
    # input files are checked before the model is loaded
    ("translate --model missing --input none.txt", "none.txt: there is no such file"),
    ("generate --model missing --input none.txt", "none.txt: there is no such file"),
    ("translate --model empty", "empty holds no model: it has no config.json"),
    ("translate --model damaged", "is not a valid JSON file"),
    ("translate --model bare Hello", "bare has no tokenizer next to the model: put its files there"),
    ("translate --model classifier", "ForSequenceClassification; give a VanillaTransformerForConditionalGeneration"),
    ("generate --model tr", "ForConditionalGeneration; give a VanillaTransformerForCausalLM"),
    ("train classification --model_name_or_path tr", "tr is a model of class VanillaTransformerForConditionalG"),
    ("train classification --model_name_or_path runs/my/missing", "runs/my/missing: there is no such folder"),
    ("evaluate --model missing", "missing: there is no such folder"),
    ("import --source runs/my/missing --output x", "missing"),
    ("walk --model tr --text hi --layer 9", "no layer 9: the model has layers 1 to 2"),
    # --- invalid configs and recipes
    ("train translation --preset tiny --d_model 100 --num_heads 3", "d_model=100"),
    ("train translation --preset tiny --dropout 1.5", "dropout=1.5"),
    ("train translation --schedule paper --learning_rate 2", "learning_rate=2.0 belongs to --schedule library"),
    ("train translation --label_smoothing_factor 0.1", "give --label_smoothing instead"),
    ("train translation --early_stopping_patience 3", "needs --load_best_model_at_end true"),
    ("train translation --output_dir full", "output_dir=full is not empty"),
    ("train classification --output_dir full --do_train false", "do_train=False scores a saved model: give it as"),
    ("train translation --num_beams 0", "num_beams=0 must be at least 1"),
    ("train translation --extra_tokens -100", "extra_tokens=-100 must be at least 0"),
    ("train question_answering --stride -5", "stride=-5 must be at least 0"),
    ("train question_answering --max_answer_length 0", "max_answer_length=0 must be at least 1"),
    ("train language_modeling --block_size 1", "block_size=1 must be at least 2"),
    ("train masked_language_modeling --mask_probability 0", "mask_probability=0.0 must be greater than 0"),
    ("train classification --max_length 0", "max_length=0 must be at least 1"),
    ("train tagging --eval_strategy steps --metric_for_best_model f2", "choose from loss, precision, recall, f1."),
    ("train classification --eval_strategy steps --metric_for_best_model f1", "choose from loss, accuracy, macro_f1."),
    ("train translation --eval_strategy steps --metric_for_best_model bleu", "bleu is not computed during training"),
    ("train tagging --average_checkpoints 0", "average_checkpoints=0 must be at least 1"),
    ("average --run full --last 0 --output x", "--last 0 must be at least 1"),
    ("generate --model tr --batch_size 0", "--batch_size 0 must be at least 1"),
    ("translate --model tr --batch_size 0", "--batch_size 0 must be at least 1"),
    ("translate --model tr --num_beams 0", "--num_beams 0 must be at least 1"),
    ("translate --model tr --extra_tokens -1", "--extra_tokens -1 must be at least 0"),
    ("translate --model tr --device xyz", "--device xyz: PyTorch finds cpu"),
    ("generate --model tr --device cuda:99", "--device cuda:99: PyTorch finds cpu"),
    ("translate --model missing --device cpu:0", "missing: there is no such folder"),
    ("translate --model tr --output none/x.txt", "none/x.txt: there is no such folder as "),
    ("evaluate --model tr --scores none/x.json", "none/x.json: there is no such folder as "),
    ("train translation --train_file shard1.tab shard2.tab", "shard1.tab: its name must end in one of .json"),
    # --- data
    ("train translation --target_locale spanish", "Unknown locale 'spanish': choose one of CLDR, such as 'de'"),
    ("train translation --source_locale xq", "Unknown locale 'xq'"),
    ("train translation --train_file none.jsonl", "none.jsonl: there is no such file"),
    ("train translation --train_file rows.jsonl --dataset some/name", "exclude each other"),
    ("train translation --train_file rows.jsonl --columns src=source", "give ours=yours, where ours is one of"),
    ("train translation --train_file rows.jsonl --columns source=src", "src"),
    ("train translation --train_file .", ". is a folder: give files, or a folder with a data set as --dataset ."),
    ("train translation --train_file one.txt", "two files of parallel lines"),
    ("train translation --validation_file rows.jsonl", "there is no training data: give --train_file"),
    ("train translation --train_file rows.jsonl --validation_fraction 0 --eval_strategy steps", "needs validation"),
    ("train translation --validation_fraction 2", "--validation_fraction 2.0 must be at least 0 and below 1"),
    ("train translation --phrases 1", "--phrases 1 is out of range: choose from 1000"),
    ("translate --model tr --input none.txt", "none.txt"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Create a working folder with a translation model, a classifier, and faulty folders and files."""
    folder = tmp_path_factory.mktemp("wrong")
    write(folder / "tr", *with_tokenizer(texts=["three miles", "tres millas"] * 3, vocab_size=280))
    encoder_only(VanillaTransformerForSequenceClassification).save_pretrained(folder / "classifier")
    encoder_decoder().save_pretrained(folder / "bare")
    for name in ("empty", "full", "damaged"):
        (folder / name).mkdir()
    (folder / "full" / "notes.txt").write_text("mine")
    (folder / "damaged" / "config.json").write_text("{")
    (folder / "rows.jsonl").write_text('{"source": "a", "target": "b"}\n' * 5)
    (folder / "one.txt").write_text("three miles\n")
    for name in ("shard1.tab", "shard2.tab"):
        (folder / name).write_text("source\ttarget\na\tb\n")
    return folder


@pytest.fixture
def unchanged(folder):
    """Assert that the test neither creates nor deletes files."""
    before = sorted(folder.rglob("*"))
    yield
    assert sorted(folder.rglob("*")) == before


def test_there_are_at_least_40_cases_of_wrong_use():
    assert len(WRONG) >= 40


@pytest.mark.parametrize(("command", "said"), WRONG, ids=[command for command, _ in WRONG])
def test_wrong_use_prints_one_line_and_exits_with_code_2(command, said, folder, unchanged, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["vanilla-transformer", *command.split()])
    with pytest.raises(SystemExit) as stop:
        main()
    printed = capsys.readouterr()
    lines = [
        line for line in printed.err.splitlines() if line and not re.search(r"\d+%\||examples/s", line)
    ]  # ignore progress bars
    assert stop.value.code == 2
    assert len(lines) == 1 and said in lines[0], printed.err
    assert lines[0].startswith(f"vanilla-transformer {command.split()[0]}: error: ")


def test_the_error_for_an_unknown_figure_name_lists_the_known_names(capsys):
    with pytest.raises(SystemExit):
        figures.main(["mask"])
    assert "there is no figure 'mask'; choose from encoder-decoder" in capsys.readouterr().err
