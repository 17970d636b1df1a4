"""Train a reader that finds the answer to a question in a text (extractive question answering).

python scripts/train_question_answering.py --dataset squad --output_dir runs/reader
"""

from dataclasses import dataclass, field

from datasets import Dataset, DatasetDict
from transformers import DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer import (
    QuestionAnsweringPipeline,
    VanillaTransformerEncoderConfig,
    VanillaTransformerForQuestionAnswering,
)
from vanilla_transformer.data.splits import load_splits, texts_of
from vanilla_transformer.training.metrics import question_answering_scores
from vanilla_transformer.training.options import make_model
from vanilla_transformer.training.recipe import RecipeArguments, RecipeTrainer
from vanilla_transformer.training.run import (
    Evaluation,
    Scores,
    encoded_splits,
    make_tokenizer,
    parse,
    run,
    score_splits,
)


@dataclass
class QuestionAnsweringArguments(RecipeArguments):
    max_length: int = field(default=384, metadata={"help": "Tokens of question and text that are read at once."})
    stride: int = field(default=128, metadata={"help": "Overlap of the pieces of a longer text, in tokens."})
    max_answer_length: int = field(default=30, metadata={"help": "Longest answer, in tokens."})


def read_pieces(rows: dict, tokenizer: PreTrainedTokenizerBase, args: QuestionAnsweringArguments) -> dict[str, list]:
    """Question and piece of text for each piece: its row, its tokens, and the characters each token stands for.

    `offsets` is (-1, -1) for tokens outside the text.
    """
    encoded = tokenizer(
        rows["question"],
        rows["context"],
        truncation="only_second",
        max_length=args.max_length,
        stride=args.stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    offsets = [
        [span if part == 1 else (-1, -1) for span, part in zip(spans, encoded.sequence_ids(i), strict=True)]
        for i, spans in enumerate(encoded["offset_mapping"])
    ]
    return {"row": encoded["overflow_to_sample_mapping"], "input_ids": encoded["input_ids"], "offsets": offsets}


def answer_positions(offsets: list[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """First and last token of the characters [start, end); 0, 0 where this piece does not hold all of them."""
    inside = [i for i, (first, last) in enumerate(offsets) if first < end and last > start and first >= 0]
    if not inside or offsets[inside[0]][0] > start or offsets[inside[-1]][1] < end:
        return 0, 0
    return inside[0], inside[-1]


def encode_training(train: Dataset, tokenizer: PreTrainedTokenizerBase, args: QuestionAnsweringArguments) -> Dataset:
    def encode_rows(rows: dict[str, list]) -> dict[str, list]:
        pieces = read_pieces(rows, tokenizer, args)
        positions = []
        for row, offsets in zip(pieces["row"], pieces["offsets"], strict=True):
            answers = rows["answers"][row]
            start, text = (answers["answer_start"] or [0])[0], (answers["text"] or [""])[0]
            positions.append(answer_positions(offsets, start, start + len(text)) if text else (0, 0))
        starts, ends = zip(*positions, strict=True)
        return {"input_ids": pieces["input_ids"], "start_positions": list(starts), "end_positions": list(ends)}

    return train.map(encode_rows, batched=True, remove_columns=train.column_names, desc="tokenizing")


def answer_all(rows: Dataset, reader: QuestionAnsweringPipeline) -> list[str]:
    """The best answer to each row, over all pieces of its text."""
    questions = [{"question": row["question"], "context": row["context"]} for row in rows]
    return [found["answer"] for found in reader(questions, batch_size=64)]


def make_trainer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, args: QuestionAnsweringArguments, splits: DatasetDict
) -> RecipeTrainer:
    return RecipeTrainer(
        model=model,
        args=args,
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        **encoded_splits(splits, lambda rows: encode_training(rows, tokenizer, args)),
    )


def evaluate(trainer: RecipeTrainer, splits: DatasetDict) -> Evaluation:
    """Read the held-out splits, in the main process."""
    if not trainer.is_world_process_zero():
        return {}, {}
    args: QuestionAnsweringArguments = trainer.args
    reader = QuestionAnsweringPipeline(
        model=trainer.model.eval(),
        tokenizer=trainer.processing_class,
        max_seq_len=args.max_length,
        doc_stride=args.stride,
        max_answer_len=args.max_answer_length,
    )

    def score(rows: Dataset) -> dict[str, float]:
        answers = {str(i): answer for i, answer in enumerate(answer_all(rows, reader))}
        return question_answering_scores(answers, {str(i): row["answers"]["text"] for i, row in enumerate(rows)})

    return score_splits(splits, score), {}


def main(arguments: list[str] | None = None) -> Scores:
    """Run the script; returns the scores by split."""
    options, data, tokenizing, training = parse(VanillaTransformerEncoderConfig, QuestionAnsweringArguments, arguments)
    splits = load_splits(data, "question_answering")
    texts = texts_of(splits["train"], "question_answering")
    tokenizer = make_tokenizer(tokenizing, options.model_name_or_path, texts, "encoder")
    model = make_model(VanillaTransformerForQuestionAnswering, options, tokenizer)
    trainer = make_trainer(model, tokenizer, training, splits)
    return run(trainer, splits, evaluate, "question-answering", data.name)


if __name__ == "__main__":
    main()
