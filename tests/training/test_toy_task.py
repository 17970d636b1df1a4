"""Test that a new task only needs a module in `tasks/`, as described in CONTRIBUTING.md."""

import importlib

import pytest
from transformers import AutoModelForSeq2SeqLM

from small_data import SMALL, train_and_validate_on, write_json_lines
from vanilla_transformer import tasks
from vanilla_transformer.cli import train


MODULE = '''
"""Reversal: write the words of a text in reverse order."""

from transformers import DataCollatorForSeq2Seq

from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.data.columns import TEXT, Schema
from vanilla_transformer.decoding import translate
from vanilla_transformer.tasks.task import Task, unwrap_for_eval
from vanilla_transformer.training.trainer import RecipeSeq2SeqTrainer


class ReversalTask(Task):
    """The words of a text in reverse order."""

    name = "reversal"
    data = Schema({"text": TEXT})
    model_class = VanillaTransformerForConditionalGeneration
    template = "seq2seq"
    pipeline_tag = "translation"
    usage = "model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)"
    trainer_class = RecipeSeq2SeqTrainer

    def encode(self, rows, tokenizer, config):
        """Return rows of input_ids and labels."""

        def encode_row(row):
            return tokenizer(row["text"], text_target=" ".join(reversed(row["text"].split())))

        return rows.map(encode_row, remove_columns=["text"])

    def collator(self, tokenizer, model):
        """Return the collator that pads inputs and labels."""
        return DataCollatorForSeq2Seq(tokenizer, model=model)

    def evaluate(self, trainer, rows):
        """Compute the share of texts that are reversed without an error."""
        texts = list(rows["text"])
        outputs = translate(texts, unwrap_for_eval(trainer), trainer.processing_class)
        right = [output.split() == text.split()[::-1] for text, output in zip(texts, outputs, strict=True)]
        return {"exact_match": 100 * sum(right) / len(right)}, {}
'''
TEXTS = [{"text": " ".join(words)} for words in ("ab", "ba", "cab", "bac", "abc", "acb", "abcd", "dcba")]


@pytest.fixture
def reversal(tmp_path, monkeypatch):
    """Add a task to the package as a module of its own."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "reversal.py").write_text(MODULE)
    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(folder)])
    importlib.invalidate_caches()


def test_a_task_in_a_new_module_can_be_trained_and_scored(reversal, tmp_path, capsys):
    assert "reversal" in tasks.task_names()
    file = write_json_lines(tmp_path / "rows.jsonl", TEXTS)
    size = ["--encoder_layers", "1", "--decoder_layers", "1", "--max_steps", "60"]
    options = [*train_and_validate_on(file), *SMALL, *size, "--output_dir", str(tmp_path / "run")]
    scores = train.main(["reversal", *options])
    assert scores["validation"]["exact_match"] == 100
    assert "validation: exact_match 100" in capsys.readouterr().out
    assert "AutoModelForSeq2SeqLM" in (tmp_path / "run/README.md").read_text()
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run").config.decoder_layers == 1
