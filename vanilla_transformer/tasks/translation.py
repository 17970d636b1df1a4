"""Translation, or any task from text to text."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, cast

from datasets import Dataset, IterableDataset
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.cli.options import with_default
from vanilla_transformer.data.tokenizer import lowercases
from vanilla_transformer.decoding import EXTRA_TOKENS, decode_like_the_paper, translate
from vanilla_transformer.files import map_by_length
from vanilla_transformer.tasks.joining import with_joined_pairs
from vanilla_transformer.tasks.metrics import MOSES_LANGUAGES, BleuOptions, translation_scores
from vanilla_transformer.tasks.task import Notes, Rows, Task, as_saved, warned_of_cuts
from vanilla_transformer.training.batching import TokenBudgetSampler, row_lengths
from vanilla_transformer.training.collating import ArrowRows, PairCollator
from vanilla_transformer.training.recipe import RecipeArguments, RecipeSeq2SeqTrainer


@dataclass
class TranslationArguments(RecipeArguments):
    """Options of training: the recipe's with the paper's batches and average, how it decodes, and how it is scored."""

    LEAST: ClassVar[dict[str, int]] = {**RecipeArguments.LEAST, "num_beams": 1, "extra_tokens": 0, "max_length": 1}

    tokens_per_batch: int = with_default(RecipeArguments, "tokens_per_batch", 25_000)
    average_checkpoints: int = with_default(RecipeArguments, "average_checkpoints", 5)
    # None, where a saved model is scored, is what it was saved with.
    num_beams: int | None = field(
        default=4, metadata={"help": "Beam size of the final evaluation and of the saved model."}
    )
    length_penalty: float | None = field(
        default=0.6, metadata={"help": "Alpha of the length penalty of Wu et al. (2016)."}
    )
    extra_tokens: int = field(
        default=EXTRA_TOKENS, metadata={"help": "How many tokens longer than its input an output may be."}
    )
    max_length: int = field(default=256, metadata={"help": "Truncate training sequences to this many tokens."})
    joined_pairs: float = field(
        default=0.0,
        metadata={
            "help": "Train on this many joined pairs for each pair as well: two at random, one behind the other. "
            "For data that come again and again; 0.5 has each pair in one of them."
        },
    )
    datastore: bool = field(
        default=False,
        metadata={
            "help": "Keep the decoder's states of the training data beside the model, and translate by those that are "
            "most similar as well. Where a saved model is scored, use what lies beside it."
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
        default=False, metadata={"help": "Split words at hyphens for that BLEU, as the paper's authors did."}
    )
    normalize_punctuation: bool = field(
        default=False,
        metadata={"help": "Normalise punctuation as Moses does for that BLEU, as Multi30k's tokenised texts have it."},
    )

    def __post_init__(self):
        super().__post_init__()
        if self.joined_pairs < 0:
            raise ValueError(f"joined_pairs={self.joined_pairs} must not be negative; 0 joins none.")
        if self.datastore:
            import_module("vanilla_transformer.datastore")  # which says so now if something is not installed
        if self.moses_language not in (None, *MOSES_LANGUAGES):
            raise ValueError(
                f"moses_language={self.moses_language} is none of those that Moses' tokenizer knows: "
                f"{', '.join(MOSES_LANGUAGES)}. It reads other languages as English: give en for them."
            )
        for name in ("split_compounds", "normalize_punctuation"):
            if getattr(self, name) and self.moses_language is None:
                raise ValueError(f"{name}=True is for the BLEU that --moses_language adds: give that too, such as de.")

    @property
    def decoding(self) -> dict[str, int | float]:
        """The options of generation that are given. A single beam has no use for a length penalty."""
        names = ["num_beams"] if self.num_beams == 1 else ["num_beams", "length_penalty"]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


UNCUT = 1_000_000  # tokens: sources are translated whole


def encode(rows: Rows, tokenizer: PreTrainedTokenizerBase, max_length: int, num_workers: int | None = None) -> Rows:
    """Columns input_ids and labels in the place of source and target, where "</s>" is text.

    Rows that lie on disk are encoded once for all processes and runs with the same tokenizer and length.
    """

    def encode_texts(texts: list[str]) -> list[list[int]]:
        cut = {"truncation": True, "max_length": max_length, "return_attention_mask": False}
        return tokenizer(texts, split_special_tokens=True, **cut)["input_ids"]

    def encode_rows(rows: dict) -> dict:
        return {"input_ids": encode_texts(rows["source"]), "labels": encode_texts(rows["target"])}

    # What is encoded is found again by the tokenizer's state, of which its first use with this length is a part.
    encode_texts([""])
    options = {} if isinstance(rows, IterableDataset) else {"num_proc": num_workers, "desc": "tokenizing"}
    return rows.map(encode_rows, batched=True, remove_columns=["source", "target"], **options)


def augment(rows: Rows, args: TranslationArguments) -> Rows:
    """The rows to train on, with joined pairs where these are asked for."""
    if args.datastore and isinstance(rows, IterableDataset):
        raise ValueError("datastore=True keeps all training data, of which a stream may have no end: leave out one.")
    seed = args.seed if args.data_seed is None else args.data_seed
    return with_joined_pairs(warned_of_cuts(rows, args), args.joined_pairs, args.max_length, seed)


def batches_of(rows: Dataset, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> DataLoader:
    """Each of the encoded rows once, with others of about its length."""
    lengths = row_lengths(rows)
    sampler = TokenBudgetSampler(lengths, max(4096, int(lengths.max())))
    return DataLoader(
        cast(Any, ArrowRows(rows)),
        batch_sampler=sampler,
        collate_fn=PairCollator(tokenizer, model=model).collate_table,
    )


def keep_states(trainer: RecipeSeq2SeqTrainer, rows: Dataset) -> None:
    """Save a datastore of the training data beside the model, where one is asked for."""
    args, model = cast(TranslationArguments, trainer.args), cast(Any, trainer.model)
    if not args.datastore:
        return
    from vanilla_transformer.datastore import build_datastore  # which needs FAISS

    tokenizer = trainer.processing_class
    encoded = encode(rows, tokenizer, args.max_length, args.preprocessing_num_workers)
    build_datastore(model, batches_of(encoded, model, tokenizer)).save(args.output_dir)


def with_its_datastore(trainer: RecipeSeq2SeqTrainer) -> AbstractContextManager:
    """Within it, the model translates by the datastore that lies beside it, where that is asked for."""
    if not cast(TranslationArguments, trainer.args).datastore:
        return nullcontext()
    from vanilla_transformer.datastore import load_datastore, use_datastore

    model = cast(Any, trainer.model)
    source = trainer.args.output_dir if trainer.state.global_step else model.name_or_path
    return use_datastore(model, load_datastore(source))


def evaluate(trainer: RecipeSeq2SeqTrainer, rows: Dataset) -> tuple[dict[str, float], Notes]:
    """Translate the sources and compare with the targets."""
    model, tokenizer = as_saved(trainer), trainer.processing_class
    args = cast(TranslationArguments, trainer.args)

    def translate_batch(batch: list[str]) -> list[str]:
        return translate(batch, model, tokenizer, args.extra_tokens, **args.decoding)

    with with_its_datastore(trainer):
        hypotheses = map_by_length(translate_batch, list(rows["source"]), 64, "translating")
    bleu = BleuOptions(lowercases(tokenizer), args.moses_language, args.split_compounds, args.normalize_punctuation)
    return translation_scores(hypotheses, list(rows["target"]), bleu)


TRANSLATION = Task(
    data="translation",
    model_class=VanillaTransformerForConditionalGeneration,
    template="seq2seq",
    pipeline_tag="translation",
    arguments_class=TranslationArguments,
    encode=lambda rows, tokenizer, config, args: encode(
        rows, tokenizer, args.max_length, args.preprocessing_num_workers
    ),
    augment=augment,
    collator=lambda tokenizer, model, args: PairCollator(tokenizer, model=model),
    finish=keep_states,
    evaluate=evaluate,
    read_when_scored=lambda rows, tokenizer, encoded: encode(rows, tokenizer, UNCUT),
    in_one_process=True,
    prepare=lambda model, args: decode_like_the_paper(model, args.num_beams, args.length_penalty),
    saved_options=lambda config: {"num_beams": None, "length_penalty": None},
    trainer_class=RecipeSeq2SeqTrainer,
)
