"""Score a saved model on any data, by the tools of its task.

python scripts/evaluate_model.py --model runs/en-de --test_file test.jsonl --columns source=en target=de
python scripts/evaluate_model.py --model runs/classifier --dataset user/reviews --splits test=dev --scores scores.json

Every option of the task's training script is there as well, such as --per_device_eval_batch_size.
"""

import json
import sys
import tempfile
from argparse import ArgumentParser
from dataclasses import dataclass, field
from types import ModuleType

from transformers import AutoConfig, AutoTokenizer, HfArgumentParser, PreTrainedConfig

import train_classifier
import train_language_model
import train_masked_language_model
import train_question_answering
import train_tagger
import train_translation
import vanilla_transformer
from vanilla_transformer.data.checks import CLASS_COLUMNS
from vanilla_transformer.data.sources import DataArguments
from vanilla_transformer.data.splits import load_splits
from vanilla_transformer.files import open_output
from vanilla_transformer.training.run import HELD_OUT, Scores, print_scores


@dataclass
class EvaluationArguments:
    model: str = field(metadata={"help": "Folder of the model, or its name on the Hub."})
    scores: str | None = field(default=None, metadata={"help": "Also write the scores to this JSON file."})


# Class of the model -> task of its data, script that trains it, arguments of that script.
TASKS: dict[str, tuple[str, ModuleType, type]] = {
    "VanillaTransformerForConditionalGeneration": (
        "translation",
        train_translation,
        train_translation.TranslationArguments,
    ),
    "VanillaTransformerForCausalLM": (
        "language_modeling",
        train_language_model,
        train_language_model.LanguageModelArguments,
    ),
    "VanillaTransformerForMaskedLM": (
        "language_modeling",
        train_masked_language_model,
        train_masked_language_model.MaskedLanguageModelArguments,
    ),
    "VanillaTransformerForSequenceClassification": (
        "classification",
        train_classifier,
        train_classifier.ClassifierArguments,
    ),
    "VanillaTransformerForTokenClassification": ("tagging", train_tagger, train_tagger.TaggerArguments),
    "VanillaTransformerForQuestionAnswering": (
        "question_answering",
        train_question_answering,
        train_question_answering.QuestionAnsweringArguments,
    ),
}


def architecture_of(config: PreTrainedConfig, name: str) -> str:
    """The model's class.

    Raises:
        ValueError: it has no head for a task.
    """
    architecture = (config.architectures or ["none"])[0]
    if architecture not in TASKS:
        raise ValueError(
            f"{name} holds a model of class {architecture}; one of these can be scored: {', '.join(TASKS)}."
        )
    return architecture


def known_classes(config: PreTrainedConfig) -> set:
    """The model's classes, as text and, where they are numbers, as numbers."""
    return {*config.label2id, *(int(name) for name in config.label2id if name.lstrip("-").isdigit())}


def own_settings(architecture: str, config: PreTrainedConfig) -> dict:
    """Options that the model decides unless they are given: how it decodes, and how much text it reads at once."""
    if architecture == "VanillaTransformerForConditionalGeneration":
        return {"num_beams": None, "length_penalty": None}
    if architecture == "VanillaTransformerForCausalLM":
        return {"block_size": config.max_position_embeddings}
    return {}


def main(arguments: list[str] | None = None) -> Scores:
    """Run the script; returns the scores by split."""
    given = sys.argv[1:] if arguments is None else arguments
    first = ArgumentParser(add_help=False)
    first.add_argument("--model")
    name = first.parse_known_args(given)[0].model
    if name is None:  # so that help can be had, and else the missing option is named
        HfArgumentParser([EvaluationArguments, DataArguments]).parse_args(given)
    config = AutoConfig.from_pretrained(name)
    architecture = architecture_of(config, name)
    task, script, arguments_class = TASKS[architecture]

    with tempfile.TemporaryDirectory() as unused:
        parser = HfArgumentParser([EvaluationArguments, DataArguments, arguments_class])
        parser.set_defaults(output_dir=unused, **own_settings(architecture, config))
        options, data, training = parser.parse_args_into_dataclasses(given)
        other_tasks = {"regression": "regression", "multi_label_classification": "multi_label"}
        task = other_tasks.get(config.problem_type, task)
        splits = load_splits(data, task, known_classes(config) if task in CLASS_COLUMNS else None)
        held_out = type(splits)({split: splits[split] for split in HELD_OUT if split in splits})
        if not held_out:
            raise ValueError("There is nothing to score: give --test_file, or --splits test=NAME of a data set.")
        model = getattr(vanilla_transformer, architecture).from_pretrained(name)
        if task == "translation":
            decoding = {"num_beams": training.num_beams, "length_penalty": training.length_penalty}
            model.generation_config.update(**{key: value for key, value in decoding.items() if value is not None})
        trainer = script.make_trainer(model, AutoTokenizer.from_pretrained(name), training, {})
        scores, notes = script.evaluate(trainer, held_out)
    print_scores(scores, notes)
    if options.scores is not None:
        with open_output(options.scores) as stream:
            facts = {"model": name, "data": data.name, "scores": scores, "notes": notes}
            stream.write(json.dumps(facts, indent=2) + "\n")
    return scores


if __name__ == "__main__":
    main()
