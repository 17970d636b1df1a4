"""Token classification: predict a tag for each word, such as named entities in the BIO scheme."""

import logging
from collections import Counter, defaultdict
from typing import Any, cast

import numpy as np
from datasets import Dataset
from transformers import (
    DataCollatorForTokenClassification,
    EvalPrediction,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from vanilla_transformer import VanillaTransformerForTokenClassification
from vanilla_transformer.data.columns import TAGS, TOKENS, Schema
from vanilla_transformer.data.tokenizer import read_words_with_spaces
from vanilla_transformer.modeling_vanilla_transformer import IGNORED_LABEL
from vanilla_transformer.tasks.classification import class_names, label_fields
from vanilla_transformer.tasks.metrics import TAGGING_SCORES, tagging_scores
from vanilla_transformer.tasks.task import Example, Notes, Scores, TruncatingTask, as_code, measure
from vanilla_transformer.training.trainer import RecipeTrainerMixin


logger = logging.getLogger(__name__)


class TaggingTask(TruncatingTask):
    """A class for each word."""

    name = "tagging"
    data = Schema({"tokens": TOKENS, "tags": TAGS}, classes="tags", phrasebook="tagging")
    model_class = VanillaTransformerForTokenClassification
    pipeline_tag = "token-classification"
    usage = """\
tag = pipeline("token-classification", model=folder, trust_remote_code=True, aggregation_strategy="first")
print(tag("A sentence to tag."))"""
    ranked_by = "f1"
    metric_names = TAGGING_SCORES

    def config_fields(self, rows: Dataset, model_options: Any) -> dict[str, Any]:
        """Return the config fields that name the tags. The metrics treat the tag O as "no entity".

        Raises:
            ValueError: all words have the same tag.
        """
        names = class_names(rows["tags"][:])
        if len(names) == 1:
            raise ValueError(f"All words of the training data have the tag {names[0]!r}: there is nothing to learn.")
        return label_fields(names)

    def encode(self, rows: Dataset, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> Dataset:
        """Tokenize the rows into input_ids and labels. Only the first token of each word has a label.

        Modifies the tokenizer so that it encodes each word with a preceding space, as in running text.
        """
        read_words_with_spaces(tokenizer)
        label2id, max_length = cast(dict[str, int], config.label2id), self.arguments.max_length

        def encode_rows(rows: dict[str, list]) -> dict[str, list]:
            encoded = tokenizer(rows["tokens"], is_split_into_words=True, truncation=True, max_length=max_length)
            labels = []
            for row, tags in enumerate(rows["tags"]):
                words = encoded.word_ids(row)
                is_first = [word not in (None, before) for before, word in zip([None, *words], words, strict=False)]
                labels.append(
                    [label2id[tags[w]] if first else IGNORED_LABEL for first, w in zip(is_first, words, strict=True)]
                )
            return {"input_ids": encoded["input_ids"], "labels": labels}

        return rows.map(encode_rows, batched=True, remove_columns=["tokens", "tags"], desc="tokenizing")

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: Any) -> DataCollatorForTokenClassification:
        """Return transformers' collator, which also pads the labels."""
        return DataCollatorForTokenClassification(tokenizer)

    def metrics(self, config: PreTrainedConfig, prediction: EvalPrediction) -> dict[str, float]:
        """Compute precision, recall and F1 from logits (sentences, tokens, classes) of labelled tokens."""
        tags = cast(dict[int, str], config.id2label)
        best = np.asarray(prediction.predictions).argmax(axis=-1)
        pairs = [
            [(tags[p], tags[t]) for p, t in zip(predicted, true, strict=True) if t != IGNORED_LABEL]
            for predicted, true in zip(best, prediction.label_ids, strict=True)
        ]
        return tagging_scores([[p for p, _ in row] for row in pairs], [[t for _, t in row] for row in pairs])

    def examples(self, trainer: RecipeTrainerMixin, rows: Dataset) -> list[Example]:
        """Return the predicted tags of each sentence. The score is the share of correct tags."""
        config = trainer.model.config
        found = trainer.predict(self.encode(rows, trainer.processing_class, config))
        best, names = np.asarray(found.predictions).argmax(axis=-1), cast(dict[int, str], config.id2label)
        examples = []
        for row, predicted, labels in zip(rows, best, np.asarray(found.label_ids), strict=True):
            tags = [names[p] for p, label in zip(predicted, labels, strict=True) if label != IGNORED_LABEL]
            wanted = list(map(str, row["tags"]))
            score = float(np.mean([a == b for a, b in zip(tags, wanted, strict=False)] or [True]))
            examples.append(Example(" ".join(row["tokens"]), " ".join(wanted), " ".join(tags), score))
        return examples

    def baselines(self, trainer: RecipeTrainerMixin, train: Dataset, rows: Dataset) -> Scores:
        """Return the scores of predicting the most frequent training tag of each word."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for row in train:
            for word, tag in zip(row["tokens"], map(str, row["tags"]), strict=True):
                counts[word][tag] += 1
        usual = sum(counts.values(), Counter()).most_common(1)[0][0]
        best = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
        predicted = [[best.get(word, usual) for word in tokens] for tokens in rows["tokens"]]
        return {"most frequent tag of each word": tagging_scores(predicted, [[*map(str, t)] for t in rows["tags"]])}

    def pipeline_input(self, row: dict[str, Any]) -> str:
        """Return the sentence and the aggregation strategy, as Python code."""
        return f'{as_code(" ".join(row["tokens"]))}, aggregation_strategy="first"'

    def evaluate(self, trainer: RecipeTrainerMixin, rows: Dataset) -> tuple[dict[str, float], Notes]:
        """Compute the loss and metrics. Warn about words that are not scored because of truncation."""
        max_length = self.arguments.max_length
        encoded = self.encode(rows, trainer.processing_class, trainer.model.config)
        missing = sum(
            len(tags) - sum(label != IGNORED_LABEL for label in labels)
            for tags, labels in zip(rows["tags"], encoded["labels"], strict=True)
            if len(labels) == max_length
        )
        if missing:
            message = "%d of %d words are not scored, because --max_length %d truncates their sentences."
            logger.warning(message, missing, sum(map(len, rows["tags"])), max_length)
        return measure(trainer, encoded), {}
