"""Extractive question answering: a span of a text that answers a question."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from reprlib import repr as short
from typing import ClassVar, cast

from datasets import Dataset
from transformers import DataCollatorWithPadding, PreTrainedConfig, PreTrainedTokenizerBase

from vanilla_transformer import QuestionAnsweringPipeline, VanillaTransformerForQuestionAnswering
from vanilla_transformer.pipeline_vanilla_transformer import question_inputs, read_windows, tokens_beside_context
from vanilla_transformer.tasks.metrics import question_answering_scores
from vanilla_transformer.tasks.task import Notes, Task, as_saved
from vanilla_transformer.training.recipe import PaperRecipe, RecipeArguments


@dataclass
class QuestionAnsweringArguments(RecipeArguments):
    """Options of training: the recipe's, and how long texts are read in pieces."""

    LEAST: ClassVar[dict[str, int]] = {**RecipeArguments.LEAST, "max_length": 1, "stride": 0, "max_answer_length": 1}

    max_length: int = field(default=384, metadata={"help": "How many tokens of question and text are read at once."})
    stride: int = field(default=128, metadata={"help": "Overlap between the pieces of a longer text, in tokens."})
    max_answer_length: int = field(default=30, metadata={"help": "Maximum length of an answer, in tokens."})


def read_pieces(
    number: int, question: str, context: str, tokenizer: PreTrainedTokenizerBase, args: QuestionAnsweringArguments
) -> Iterator[dict[str, list]]:
    """Question and piece of text for each piece of a row, as the pipeline reads them: see `read_windows`.

    Raises:
        ValueError: the question leaves no room for the text.
    """
    needed = tokens_beside_context(tokenizer, question)
    if needed >= args.max_length:
        raise ValueError(
            f"Row {number + 1}: question: {short(question)} needs {needed} tokens, which leaves no room for the "
            f"context in max_length={args.max_length}: raise that above {needed}, or leave out or cut such questions."
        )
    return read_windows(tokenizer, question, context, args.max_length, args.stride)


def answer_positions(offsets: list[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """First and last token of the characters [start, end); 0, 0 where this piece does not hold all of them."""
    inside = [i for i, (first, last) in enumerate(offsets) if first < end and last > start]
    if not inside or offsets[inside[0]][0] > start or offsets[inside[-1]][1] < end:
        return 0, 0
    return inside[0], inside[-1]


def encode(
    train: Dataset, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, args: QuestionAnsweringArguments
) -> Dataset:
    """Columns input_ids, start_positions and end_positions in the place of the data's, a row for each piece.

    Also token_type_ids, where model and tokenizer have types.

    Raises:
        ValueError: a question leaves no room for its text.
    """

    # Masks are made where rows are padded.
    inputs = [name for name in question_inputs(config) if name in {*tokenizer.model_input_names} - {"attention_mask"}]

    def encode_rows(rows: dict[str, list], numbers: list[int]) -> dict[str, list]:
        encoded: dict[str, list] = {name: [] for name in (*inputs, "start_positions", "end_positions")}
        columns = (rows[name] for name in ("question", "context", "answers"))
        for number, question, context, answers in zip(numbers, *columns, strict=True):
            start, text = (answers["answer_start"] or [0])[0], (answers["text"] or [""])[0]
            start, text = start + len(text) - len(text.lstrip()), text.strip()  # no token is a space by itself
            for piece in read_pieces(number, question, context, tokenizer, args):
                offsets = piece["offset_mapping"]
                first, last = answer_positions(offsets, start, start + len(text)) if text else (0, 0)
                for name in inputs:
                    encoded[name].append(piece[name])
                encoded["start_positions"].append(first)
                encoded["end_positions"].append(last)
        return encoded

    return train.map(
        encode_rows, batched=True, with_indices=True, remove_columns=train.column_names, desc="tokenizing"
    )


def padding_behind(tokenizer: PreTrainedTokenizerBase) -> DataCollatorWithPadding:
    """What makes batches of encoded rows. Answers are counted from the left, so padding is on the right."""
    tokenizer.padding_side = "right"
    return DataCollatorWithPadding(tokenizer)


def answer_all(rows: Dataset, reader: QuestionAnsweringPipeline) -> list[str]:
    """The best answer to each row, over all pieces of its text."""
    questions = [{"question": row["question"], "context": row["context"]} for row in rows]
    return [found["answer"] for found in reader(questions, batch_size=64)]


def evaluate(trainer: PaperRecipe, rows: Dataset) -> tuple[dict[str, float], Notes]:
    """Read the texts for an answer to each question; where some have none, "" is one that may be given."""
    args = cast(QuestionAnsweringArguments, trainer.args)
    reader = QuestionAnsweringPipeline(
        model=as_saved(trainer),
        tokenizer=trainer.processing_class,
        max_seq_len=args.max_length,
        doc_stride=args.stride,
        max_answer_len=args.max_answer_length,
        handle_impossible_answer=not all(answers["text"] for answers in rows["answers"]),
    )
    answers = {str(i): answer for i, answer in enumerate(answer_all(rows, reader))}
    references = {str(i): row["answers"]["text"] for i, row in enumerate(rows)}
    return question_answering_scores(answers, references), {}


QUESTION_ANSWERING = Task(
    data="question_answering",
    model_class=VanillaTransformerForQuestionAnswering,
    template="encoder",
    pipeline_tag="question-answering",
    arguments_class=QuestionAnsweringArguments,
    encode=lambda rows, tokenizer, config, args: encode(rows, tokenizer, config, args),
    collator=lambda tokenizer, model, args: padding_behind(tokenizer),
    evaluate=evaluate,
    read_when_scored=lambda rows, tokenizer, encoded: None,
    in_one_process=True,
)
