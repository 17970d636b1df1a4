"""Translation and other sequence-to-sequence tasks."""

import math
import shlex
from dataclasses import dataclass, field, fields
from typing import Any, cast

import numpy as np
from datasets import Dataset, IterableDataset, concatenate_datasets
from sacrebleu import sentence_chrf
from transformers import DataCollatorForSeq2Seq, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.data.columns import TEXT, Schema
from vanilla_transformer.data.tokenizer import lowercases
from vanilla_transformer.decoding import EXTRA_TOKENS, map_by_length, set_paper_decoding, translate, warn_long_lines
from vanilla_transformer.pipeline_vanilla_transformer import longest_input
from vanilla_transformer.tasks.metrics import MOSES_LANGUAGES, translation_scores
from vanilla_transformer.tasks.task import Example, Notes, Rows, Scores, Task, unwrap_for_eval, warn_truncated
from vanilla_transformer.training.arguments import RecipeArguments
from vanilla_transformer.training.batching import SIDES
from vanilla_transformer.training.trainer import RecipeSeq2SeqTrainer, RecipeTrainerMixin


def with_default(name: str, default: Any) -> Any:
    """Return a field of `RecipeArguments` with a different default, but the same help text."""
    return field(default=default, metadata={f.name: f.metadata for f in fields(RecipeArguments)}[name])


@dataclass
class TranslationArguments(RecipeArguments):
    """Training options of the recipe with the paper's batch size and averaging, plus decoding and scoring options."""

    LIMITS = RecipeArguments.LIMITS | {
        "num_beams": (1, math.inf),
        "extra_tokens": (0, math.inf),
        "max_length": (1, math.inf),
        "concat_pairs": (0, math.inf),
    }

    tokens_per_batch: int = with_default("tokens_per_batch", 25_000)
    average_checkpoints: int = with_default("average_checkpoints", 5)
    # None means the value in the generation config of a saved model, used for scoring.
    num_beams: int | None = field(
        default=4, metadata={"help": "Beam size of the final evaluation and of the saved model."}
    )
    length_penalty: float | None = field(
        default=0.6, metadata={"help": "Alpha of the length penalty of Wu et al. (2016)."}
    )
    extra_tokens: int = field(
        default=EXTRA_TOKENS, metadata={"help": "Maximum number of tokens by which an output may exceed its input."}
    )
    max_length: int = field(default=256, metadata={"help": "Truncate training sequences to this many tokens."})
    concat_pairs: float = field(
        default=0.0,
        metadata={
            "help": "Add this many concatenated pairs per pair: two random pairs, one after the other. Limits "
            "overfitting over many epochs; 0.5 uses each pair once more."
        },
    )
    preprocessing_num_workers: int | None = field(
        default=None,
        metadata={"help": "Tokenize in this many processes; by default, in one process with a thread per core."},
    )
    moses_language: str | None = field(
        default=None,
        metadata={
            "help": "Language of the targets, such as de: also report BLEU on text tokenised by Moses, as the "
            "paper and many others do."
        },
    )
    split_compounds: bool = field(
        default=False,
        metadata={"help": "Split words at hyphens for the BLEU of --moses_language, as the paper's authors did."},
    )
    normalize_punctuation: bool = field(
        default=False,
        metadata={"help": "Normalise punctuation for the BLEU of --moses_language, as in Multi30k's tokenised texts."},
    )

    def __post_init__(self):
        super().__post_init__()
        if self.moses_language not in (None, *MOSES_LANGUAGES):
            raise ValueError(
                f"moses_language={self.moses_language} is not a language of Moses' tokenizer: choose from "
                f"{', '.join(MOSES_LANGUAGES)}. It reads all other languages as English: give en for them."
            )
        for name in ("split_compounds", "normalize_punctuation"):
            if getattr(self, name) and self.moses_language is None:
                raise ValueError(f"{name}=True needs --moses_language, such as de.")

    @property
    def decoding(self) -> dict[str, int | float]:
        """Return the options of `generate` that are not None. A single beam needs no length penalty."""
        names = ["num_beams"] if self.num_beams == 1 else ["num_beams", "length_penalty"]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


class TranslationTask(Task):
    """Text to text, with an encoder and a decoder."""

    name = "translation"
    data = Schema({"source": TEXT, "target": TEXT}, inputs=("source",), phrasebook="translation", parallel=True)
    model_class = VanillaTransformerForConditionalGeneration
    template = "seq2seq"
    pipeline_tag = "translation"
    usage = """\
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
batch = tokenizer(["A sentence to translate."], return_tensors="pt")
print(tokenizer.batch_decode(model.generate(**batch, num_beams=4), skip_special_tokens=True))"""
    arguments_class = TranslationArguments
    trainer_class = RecipeSeq2SeqTrainer
    ranked_by = "bleu"
    in_one_process = True

    arguments: TranslationArguments

    @classmethod
    def saved_options(cls, config: PreTrainedConfig) -> dict[str, Any]:
        """Return options that score a saved model with its own generation config."""
        return {"num_beams": None, "length_penalty": None}

    def prepare(self, model: PreTrainedModel) -> None:
        """Save the paper's beam search in the generation config."""
        set_paper_decoding(model, cast(int, self.arguments.num_beams), cast(float, self.arguments.length_penalty))

    def encode(self, rows: Rows, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> Rows:
        """Tokenize the pairs into input_ids and labels, truncated to `max_length`."""
        return encode_pairs(rows, tokenizer, self.arguments.max_length, self.arguments.preprocessing_num_workers)

    def augment(self, rows: Rows) -> Rows:
        """Return the rows plus the concatenated pairs set by `concat_pairs`."""
        args = self.arguments
        warn_truncated(rows, args)
        seed = args.seed if args.data_seed is None else args.data_seed
        return concatenate_pairs(rows, args.concat_pairs, args.max_length, seed)

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> DataCollatorForSeq2Seq:
        """Return transformers' sequence-to-sequence collator."""
        return DataCollatorForSeq2Seq(tokenizer, model=model)

    def evaluate(self, trainer: RecipeTrainerMixin, rows: Dataset) -> tuple[dict[str, float], Notes]:
        """Translate the sources and compute BLEU, chrF and exact match against the targets."""
        limit = longest_input(trainer.processing_class, trainer.model.config)
        warn_long_lines(list(rows["source"]), trainer.processing_class, limit, f"first {limit}")
        return self.compare(trainer, self.translations(trainer, rows), rows)

    def compare(self, trainer: RecipeTrainerMixin, texts: list[str], rows: Dataset) -> tuple[dict[str, float], Notes]:
        """Return the scores of one translation per row."""
        args = self.arguments
        moses = (args.moses_language, args.split_compounds, args.normalize_punctuation)
        return translation_scores(texts, list(rows["target"]), lowercases(trainer.processing_class), *moses)

    def translations(self, trainer: RecipeTrainerMixin, rows: Dataset) -> list[str]:
        """Return the model's translations of the sources."""
        args, model, tokenizer = self.arguments, unwrap_for_eval(trainer), trainer.processing_class

        def translate_batch(batch: list[str]) -> list[str]:
            return translate(batch, model, tokenizer, args.extra_tokens, truncation=True, **args.decoding)

        return list(map_by_length(translate_batch, list(rows["source"]), 64, "translating"))

    def examples(self, trainer: RecipeTrainerMixin, rows: Dataset) -> list[Example]:
        """Return the model's translation of each source. The score is its chrF."""
        pairs = zip(rows["source"], rows["target"], self.translations(trainer, rows), strict=True)
        return [Example(*pair, sentence_chrf(pair[2], [pair[1]]).score) for pair in pairs]

    def baselines(self, trainer: RecipeTrainerMixin, train: Dataset, rows: Dataset) -> Scores:
        """Return the scores of copying each source as its translation."""
        return {"copying the source": self.compare(trainer, list(rows["source"]), rows)[0]}

    def shell_command(self, folder: str, row: dict[str, Any]) -> str:
        """Return the command that translates the source of a row."""
        return f"vanilla-transformer translate {shlex.quote(row['source'])} --model {shlex.quote(folder)}"


def encode_pairs(
    rows: Rows, tokenizer: PreTrainedTokenizerBase, max_length: int, num_workers: int | None = None
) -> Rows:
    """Tokenize source and target into input_ids and labels, treating "</s>" in the data as ordinary text.

    For rows on disk, the result is cached and shared by all processes and runs with the same tokenizer and length.
    """

    def encode_texts(texts: list[str]) -> list[list[int]]:
        truncated = {"truncation": True, "max_length": max_length, "return_attention_mask": False}
        return tokenizer(texts, split_special_tokens=True, **truncated)["input_ids"]

    def encode_rows(rows: dict) -> dict:
        return {"input_ids": encode_texts(rows["source"]), "labels": encode_texts(rows["target"])}

    # The cache key includes the tokenizer's state, which changes when a new length is first used. Change it now.
    encode_texts([""])
    options = {} if isinstance(rows, IterableDataset) else {"num_proc": num_workers, "desc": "tokenizing"}
    return rows.map(encode_rows, batched=True, remove_columns=["source", "target"], **options)


def concatenate_pairs(rows: Rows, share: float, max_length: int, seed: int) -> Rows:
    """Augment the data with concatenations of two random rows, to vary positions and contexts.

    Nguyen et al. (2021, arXiv 2105.01691) use this method for small datasets.

    Args:
        rows: encoded `input_ids` and `labels`, each with an end token, which is removed from the first row of a pair.
        share: number of concatenated rows to add per row; 0.5 uses each row once more.
        max_length: maximum number of tokens of source or target; longer concatenations are dropped.
        seed: random seed for drawing the pairs.

    Raises:
        ValueError: the rows are a stream, which does not support random access.
    """
    if not share:
        return rows
    if isinstance(rows, IterableDataset):
        raise ValueError(f"concat_pairs={share} draws rows at random, which a stream does not allow: leave out one.")
    random, count = np.random.default_rng(seed), round(share * len(rows))
    if not count:
        return rows
    drawn = np.concatenate([random.permutation(len(rows)) for _ in range(-(-2 * count // len(rows)))])
    firsts, seconds = (rows.select(drawn[part : 2 * count : 2]) for part in (0, 1))
    seconds = seconds.select_columns(list(SIDES)).rename_columns({side: f"second_{side}" for side in SIDES})

    def join(batch: dict) -> dict:
        pairs = {side: zip(batch[side], batch[f"second_{side}"], strict=True) for side in SIDES}
        return {side: [first[:-1] + second for first, second in pairs[side]] for side in SIDES}

    def fits(batch: dict) -> list[bool]:
        return [max(map(len, sides)) <= max_length for sides in zip(*(batch[side] for side in SIDES), strict=True)]

    both = concatenate_datasets([firsts, seconds], axis=1)
    joined = both.map(
        join, batched=True, remove_columns=seconds.column_names, features=rows.features, desc="concatenating pairs"
    )
    return concatenate_datasets([rows, joined.filter(fits, batched=True, desc="dropping long pairs")])
