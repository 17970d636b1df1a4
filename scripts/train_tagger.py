"""Train a tagger: a class for each word, such as named entities in the BIO scheme.

python scripts/train_tagger.py --train_file train.jsonl --columns tags=ner_tags --output_dir runs/tagger
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from datasets import Dataset, DatasetDict
from transformers import (
    DataCollatorForTokenClassification,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from vanilla_transformer import VanillaTransformerEncoderConfig, VanillaTransformerForTokenClassification
from vanilla_transformer.data.splits import load_splits, texts_of
from vanilla_transformer.training.metrics import tagging_scores
from vanilla_transformer.training.options import make_model
from vanilla_transformer.training.recipe import RecipeArguments, RecipeTrainer
from vanilla_transformer.training.run import (
    Evaluation,
    Scores,
    encoded_splits,
    make_tokenizer,
    measure,
    parse,
    run,
    score_splits,
)


@dataclass
class TaggerArguments(RecipeArguments):
    max_length: int = field(default=512, metadata={"help": "Cut longer sentences to so many tokens."})


def task_fields(train: Dataset) -> dict[str, Any]:
    """Config fields that the training data decide: the names of all classes, in order."""
    names = dict(enumerate(sorted({str(tag) for tags in train["tags"][:] for tag in tags})))
    return {"id2label": names, "label2id": {name: i for i, name in names.items()}}


def encode(rows: Dataset, tokenizer: PreTrainedTokenizerBase, label2id: dict[str, int], max_length: int) -> Dataset:
    """Columns input_ids and labels: a word's class at its first token, -100 at its others."""

    def encode_rows(rows: dict[str, list]) -> dict[str, list]:
        # A word is encoded with the space before it, as in running text.
        words = [[f" {word}" if i else word for i, word in enumerate(sentence)] for sentence in rows["tokens"]]
        encoded = tokenizer(words, is_split_into_words=True, truncation=True, max_length=max_length)
        labels = []
        for row, tags in enumerate(rows["tags"]):
            word_ids = encoded.word_ids(row)
            first = [
                word is not None and word != before
                for before, word in zip([None, *word_ids[:-1]], word_ids, strict=True)
            ]
            labels.append([label2id[str(tags[w])] if f else -100 for f, w in zip(first, word_ids, strict=True)])
        return {"input_ids": encoded["input_ids"], "labels": labels}

    return rows.map(encode_rows, batched=True, remove_columns=["tokens", "tags"], desc="tokenizing")


def scores_of(tags: dict[int, str], prediction: EvalPrediction) -> dict[str, float]:
    pairs = [
        [(tags[p], tags[t]) for p, t in zip(predicted, true, strict=True) if t != -100]
        for predicted, true in zip(prediction.predictions.argmax(axis=-1), prediction.label_ids, strict=True)
    ]
    return tagging_scores([[p for p, _ in row] for row in pairs], [[t for _, t in row] for row in pairs])


def make_trainer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, args: TaggerArguments, splits: DatasetDict
) -> RecipeTrainer:
    return RecipeTrainer(
        model=model,
        args=args,
        data_collator=DataCollatorForTokenClassification(tokenizer),
        processing_class=tokenizer,
        compute_metrics=partial(scores_of, model.config.id2label),
        **encoded_splits(splits, lambda rows: encode(rows, tokenizer, model.config.label2id, args.max_length)),
    )


def evaluate(trainer: RecipeTrainer, splits: DatasetDict) -> Evaluation:
    def score(rows: Dataset) -> dict[str, float]:
        label2id = trainer.model.config.label2id
        return measure(trainer, encode(rows, trainer.processing_class, label2id, trainer.args.max_length))

    return score_splits(splits, score), {}


def main(arguments: list[str] | None = None) -> Scores:
    """Run the script; returns the scores by split."""
    options, data, tokenizing, training = parse(VanillaTransformerEncoderConfig, TaggerArguments, arguments)
    splits = load_splits(data, "tagging")
    texts = texts_of(splits["train"], "tagging")
    tokenizer = make_tokenizer(tokenizing, options.model_name_or_path, texts, "encoder")
    model = make_model(VanillaTransformerForTokenClassification, options, tokenizer, **task_fields(splits["train"]))
    trainer = make_trainer(model, tokenizer, training, splits)
    return run(trainer, splits, evaluate, "token-classification", data.name)


if __name__ == "__main__":
    main()
