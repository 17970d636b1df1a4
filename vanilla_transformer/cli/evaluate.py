"""Score a saved model on any data, with the metrics of its task.

vanilla-transformer evaluate --model runs/en-de --test_file test.jsonl --columns source=en target=de
vanilla-transformer evaluate --model runs/classifier --dataset user/reviews --splits test=dev --scores scores.json

The task's options of `train` work here too, such as --per_device_eval_batch_size.
"""

import json
import math
import sys
import tempfile
from argparse import ArgumentParser
from dataclasses import dataclass, field

from transformers import AutoConfig
from transformers.hf_argparser import string_to_bool

from vanilla_transformer.cli.parser import TRUST_REMOTE_CODE, CommandParser
from vanilla_transformer.cli.report import print_scores
from vanilla_transformer.data.arguments import DataArguments
from vanilla_transformer.data.splits import load_splits
from vanilla_transformer.fast import fast_products
from vanilla_transformer.files import check_output, open_output
from vanilla_transformer.loading import load_model, load_tokenizer, model_class
from vanilla_transformer.tasks import model_classes, task_of
from vanilla_transformer.tasks.task import HELD_OUT, Scores
from vanilla_transformer.training.batching import EMPTY_STREAM


@dataclass
class EvaluationArguments:
    """Options of `evaluate`: the model, and the file for the scores."""

    model: str = field(metadata={"help": "Model folder, or name on the Hub."})
    scores: str | None = field(default=None, metadata={"help": "Also write the scores to this JSON file."})
    datastore: bool = field(default=False, metadata={"help": "Translate with the datastore in the model's folder."})
    trust_remote_code: bool = field(default=False, metadata=TRUST_REMOTE_CODE)


def main(arguments: list[str] | None = None) -> Scores:
    """Run the command, and return the scores by split.

    Raises:
        ValueError: the model has no head for a task, or there is no data to score.
    """
    given = sys.argv[1:] if arguments is None else arguments
    first = ArgumentParser(add_help=False)
    first.add_argument("--model")
    first.add_argument("--trust_remote_code", nargs="?", type=string_to_bool, const=True, default=False)
    known = first.parse_known_args(given)[0]
    name, trusted = known.model, known.trust_remote_code
    if name is None:  # print the help, or an error that --model is missing
        CommandParser([EvaluationArguments, DataArguments], __doc__).parse_args(given)
    found = model_class(name, model_classes(), trusted)
    config = AutoConfig.from_pretrained(name, trust_remote_code=trusted)
    task_class = task_of(found, config)

    with tempfile.TemporaryDirectory() as unused:
        parser = CommandParser([EvaluationArguments, DataArguments, task_class.arguments_class], __doc__)
        parser.set_defaults(output_dir=unused, **task_class.saved_options(config))
        options, data, scoring = parser.parse_args_into_dataclasses(given)
        task = task_class(scoring)
        check_output(options.scores)
        if options.datastore and task.name != "translation":
            raise ValueError(f"--datastore is for translation, and {name} is for {task.name}: leave it out.")
        known_classes = {*(config.label2id or {})} if task.data.classes else None
        splits = load_splits(data, task.data, known_classes)
        held_out = {split: splits[split] for split in HELD_OUT if split in splits}
        if not held_out:
            raise ValueError("There is nothing to score: give --test_file, or --splits test=NAME of a data set.")
        model = fast_products(load_model(name, model_classes(), trusted))
        if options.datastore:
            from vanilla_transformer.datastore import load_datastore, use_datastore  # fail early without FAISS

            use_datastore(model, load_datastore(name))
        tokenizer = load_tokenizer(name, trusted)
        scores, notes = task.score(task.make_trainer(model, tokenizer, {}), held_out)
        if not scores:
            raise ValueError(f"There is nothing to score: {EMPTY_STREAM}")
    print_scores(scores, notes)
    if options.scores is not None:
        with open_output(options.scores) as stream:
            finite = {
                split: {name: value if math.isfinite(value) else None for name, value in values.items()}
                for split, values in scores.items()
            }  # JSON has no NaN
            facts = {"model": name, "data": data.name, "scores": finite, "notes": notes}
            stream.write(json.dumps(facts, indent=2) + "\n")
    return scores
