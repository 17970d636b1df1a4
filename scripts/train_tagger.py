"""Train a tagger: a class for each word, such as named entities in the BIO scheme.

python scripts/train_tagger.py --train_file train.jsonl --columns tags=ner_tags --output_dir runs/tagger
"""

from dataclasses import dataclass, field
from itertools import chain

from datasets import DatasetDict
from transformers import DataCollatorForTokenClassification, EvalPrediction, PreTrainedTokenizerBase

from data_loading import load_splits
from metrics import tagging_scores
from model_card import CardFacts
from model_options import make_model
from recipe import RecipeArguments, RecipeTrainer
from training import make_tokenizer, parse, print_scores, save, score_splits, train
from vanilla_transformer import VanillaTransformerEncoderConfig, VanillaTransformerForTokenClassification


@dataclass
class TaggerArguments(RecipeArguments):
    max_length: int = field(default=512, metadata={"help": "Cut longer sentences to so many tokens."})


def encode(splits: DatasetDict, tokenizer: PreTrainedTokenizerBase, tags: list[str], max_length: int) -> DatasetDict:
    """Columns input_ids and labels: a word's class at its first token, -100 at its others."""
    ids = {tag: i for i, tag in enumerate(tags)}

    def encode_rows(rows: dict[str, list]) -> dict[str, list]:
        # A word is encoded with the space before it, as in running text.
        words = [[f" {word}" if i else word for i, word in enumerate(sentence)] for sentence in rows["tokens"]]
        encoded = tokenizer(words, is_split_into_words=True, truncation=True, max_length=max_length)
        labels = []
        for row, row_tags in enumerate(rows["tags"]):
            word_ids = encoded.word_ids(row)
            first = [
                word is not None and word != before
                for before, word in zip([None, *word_ids[:-1]], word_ids, strict=True)
            ]
            labels.append([ids[row_tags[w]] if f else -100 for f, w in zip(first, word_ids, strict=True)])
        return {"input_ids": encoded["input_ids"], "labels": labels}

    return splits.map(encode_rows, batched=True, remove_columns=["tokens", "tags"], desc="tokenizing")


def scores_of(tags: list[str], prediction: EvalPrediction) -> dict[str, float]:
    pairs = [
        [(tags[p], tags[t]) for p, t in zip(predicted, true, strict=True) if t != -100]
        for predicted, true in zip(prediction.predictions.argmax(axis=-1), prediction.label_ids, strict=True)
    ]
    return tagging_scores([[p for p, _ in row] for row in pairs], [[t for _, t in row] for row in pairs])


def main(arguments: list[str] | None = None) -> dict[str, dict[str, float]]:
    """Run the script; returns the scores by split."""
    options, data, tokenizing, training = parse(VanillaTransformerEncoderConfig, TaggerArguments, arguments)
    splits = load_splits(data, "tagging")
    tags = sorted(set(chain.from_iterable(splits["train"]["tags"])))
    texts = (" ".join(tokens) for tokens in splits["train"]["tokens"])
    tokenizer = make_tokenizer(tokenizing, options.model_name_or_path, texts, "encoder")
    id2label = dict(enumerate(tags))
    model = make_model(
        VanillaTransformerForTokenClassification,
        options,
        tokenizer,
        id2label=id2label,
        label2id={tag: i for i, tag in id2label.items()},
    )
    encoded = encode(splits, tokenizer, tags, training.max_length)
    trainer = RecipeTrainer(
        model=model,
        args=training,
        train_dataset=encoded["train"],
        eval_dataset=encoded["validation"],
        data_collator=DataCollatorForTokenClassification(tokenizer),
        processing_class=tokenizer,
        compute_metrics=lambda prediction: scores_of(tags, prediction),
    )
    if training.do_train:
        train(trainer)
    scores = score_splits(trainer, encoded)
    print_scores(scores)
    save(trainer, CardFacts("token-classification", data.name, scores))
    return scores


if __name__ == "__main__":
    main()
