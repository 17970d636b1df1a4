"""Extractive question answering: find the span of a context that answers a question."""

import math
from collections import Counter
from dataclasses import dataclass, field
from reprlib import repr as short
from typing import Any

from datasets import Dataset
from transformers import DataCollatorWithPadding, PreTrainedConfig, PreTrainedTokenizerBase

from vanilla_transformer import QuestionAnsweringPipeline, VanillaTransformerForQuestionAnswering
from vanilla_transformer.data.columns import ANSWERS, TEXT, Schema
from vanilla_transformer.pipeline_vanilla_transformer import question_inputs, read_windows, tokens_beside_context
from vanilla_transformer.tasks.metrics import question_answering_scores
from vanilla_transformer.tasks.task import Example, Notes, Scores, Task, as_code, unwrap_for_eval
from vanilla_transformer.training.arguments import RecipeArguments
from vanilla_transformer.training.trainer import RecipeTrainerMixin


@dataclass
class QuestionAnsweringArguments(RecipeArguments):
    """Training options of the recipe, plus options for splitting long contexts into windows."""

    LIMITS = RecipeArguments.LIMITS | {
        "max_length": (1, math.inf),
        "stride": (0, math.inf),
        "max_answer_length": (1, math.inf),
    }

    max_length: int = field(default=384, metadata={"help": "Maximum tokens of a window: question and context."})
    stride: int = field(default=128, metadata={"help": "Overlap between the windows of a longer text, in tokens."})
    max_answer_length: int = field(default=30, metadata={"help": "Maximum length of an answer, in tokens."})


class QuestionAnsweringTask(Task):
    """The answer to a question as a span of a text."""

    name = "question_answering"
    data = Schema({"question": TEXT, "context": TEXT, "answers": ANSWERS}, phrasebook="question_answering")
    model_class = VanillaTransformerForQuestionAnswering
    pipeline_tag = "question-answering"
    usage = """\
answer = pipeline("question-answering", model=folder, trust_remote_code=True)
print(answer(question="What is asked?", context="A text that contains the answer."))"""
    arguments_class = QuestionAnsweringArguments
    ranked_by = "f1"
    in_one_process = True

    arguments: QuestionAnsweringArguments

    def config_fields(self, rows: Dataset, model_options: Any) -> dict[str, Any]:
        """Allow the answer "" if any training question is unanswerable."""
        return {"handle_impossible_answer": not all(answers["text"] for answers in rows["answers"])}

    def encode(self, rows: Dataset, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> Dataset:
        """Return one row per window: input_ids, start_positions, end_positions, and token_type_ids if supported.

        Raises:
            ValueError: a question is so long that it leaves no room for its context.
        """
        max_length, stride = self.arguments.max_length, self.arguments.stride
        # the collator adds the attention mask
        inputs = [n for n in question_inputs(config) if n in {*tokenizer.model_input_names} - {"attention_mask"}]

        def encode_rows(rows: dict[str, list], numbers: list[int]) -> dict[str, list]:
            encoded: dict[str, list] = {name: [] for name in (*inputs, "start_positions", "end_positions")}
            columns = (rows[name] for name in ("question", "context", "answers"))
            for number, question, context, answers in zip(numbers, *columns, strict=True):
                needed = tokens_beside_context(tokenizer, question)
                if needed >= max_length:
                    raise ValueError(
                        f"Row {number + 1}: question: {short(question)} needs {needed} tokens, which leaves no room "
                        f"for the context in max_length={max_length}: raise that above {needed}, or shorten it."
                    )
                start, text = (answers["answer_start"] or [0])[0], (answers["text"] or [""])[0]
                start, text = start + len(text) - len(text.lstrip()), text.strip()  # token offsets exclude spaces
                for window in read_windows(tokenizer, question, context, max_length, stride):
                    offsets = window["offset_mapping"]
                    first, last = answer_positions(offsets, start, start + len(text)) if text else (0, 0)
                    for name in inputs:
                        encoded[name].append(window[name])
                    encoded["start_positions"].append(first)
                    encoded["end_positions"].append(last)
            return encoded

        return rows.map(
            encode_rows, batched=True, with_indices=True, remove_columns=rows.column_names, desc="tokenizing"
        )

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: Any) -> DataCollatorWithPadding:
        """Return transformers' collator; pad on the right, because answer positions are counted from the left."""
        tokenizer.padding_side = "right"
        return DataCollatorWithPadding(tokenizer)

    def evaluate(self, trainer: RecipeTrainerMixin, rows: Dataset) -> tuple[dict[str, float], Notes]:
        """Compute exact match and F1 of the answers."""
        return answer_scores(self.answers(trainer, rows), rows), {}

    def answers(self, trainer: RecipeTrainerMixin, rows: Dataset) -> list[str]:
        """Return the model's answers. Empty answers are allowed if any of the questions is unanswerable."""
        reader = QuestionAnsweringPipeline(
            model=unwrap_for_eval(trainer),
            tokenizer=trainer.processing_class,
            max_seq_len=self.arguments.max_length,
            doc_stride=self.arguments.stride,
            max_answer_len=self.arguments.max_answer_length,
            handle_impossible_answer=not all(answers["text"] for answers in rows["answers"]),
        )
        questions = [{"question": row["question"], "context": row["context"]} for row in rows]
        return [found["answer"] for found in reader(questions, batch_size=64)]

    def examples(self, trainer: RecipeTrainerMixin, rows: Dataset) -> list[Example]:
        """Return the model's answer to each question. The score is its F1 (percent)."""
        examples = []
        for row, answer in zip(rows, self.answers(trainer, rows), strict=True):
            f1 = question_answering_scores({"": answer}, {"": row["answers"]["text"]})["f1"]
            source = f"{row['question']} {row['context']}"
            examples.append(Example(source, " | ".join(row["answers"]["text"]), answer, f1))
        return examples

    def baselines(self, trainer: RecipeTrainerMixin, train: Dataset, rows: Dataset) -> Scores:
        """Return the scores of predicting the most frequent training answer that occurs in the context."""
        counts = Counter(text for answers in train["answers"] for text in answers["text"][:1])
        usual = [text for text, _ in counts.most_common(1000)]
        found = [next((text for text in usual if text in context), "") for context in rows["context"]]
        return {"most frequent answer in the text": answer_scores(found, rows)}

    def pipeline_input(self, row: dict[str, Any]) -> str:
        """Return the question and the context as keyword arguments, in Python code."""
        return f"question={as_code(row['question'])}, context={as_code(row['context'])}"


def answer_scores(answers: list[str], rows: Dataset) -> dict[str, float]:
    """Return exact match and F1, given one predicted answer per row."""
    references = {str(i): row["answers"]["text"] for i, row in enumerate(rows)}
    return question_answering_scores({str(i): answer for i, answer in enumerate(answers)}, references)


def answer_positions(offsets: list[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """Return the first and last token of the characters [start, end); (0, 0) if the window lacks any of them."""
    inside = [i for i, (first, last) in enumerate(offsets) if first < end and last > start]
    if not inside or offsets[inside[0]][0] > start or offsets[inside[-1]][1] < end:
        return 0, 0
    return inside[0], inside[-1]
