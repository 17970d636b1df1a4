"""Pretrain an encoder by naming masked tokens; each other encoder task can go on from it with --model_name_or_path.

python scripts/train_masked_language_model.py --preset tiny --train_file text.txt --output_dir runs/encoder
"""

import math
import zlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DataCollatorForLanguageModeling, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer import VanillaTransformerEncoderConfig, VanillaTransformerForMaskedLM
from vanilla_transformer.data.splits import load_splits, texts_of
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
class MaskedLanguageModelArguments(RecipeArguments):
    max_length: int = field(default=256, metadata={"help": "Cut texts into pieces of so many tokens."})
    mask_probability: float = field(default=0.15, metadata={"help": "Share of the tokens that are to be predicted."})


class ReproducibleMasking(DataCollatorForLanguageModeling):
    """Masks drawn by a seed that the batch itself gives: other ones for other batches, in each epoch anew, but the
    same ones in a run that resumes, in which the random numbers have taken another course, and in each evaluation.
    """

    def torch_mask_tokens(self, inputs: Tensor, *arguments: Any, **options: Any) -> tuple[Tensor, ...]:
        self.generator = torch.Generator().manual_seed(zlib.crc32(inputs.numpy().tobytes()))
        return super().torch_mask_tokens(inputs, *arguments, **options)


def encode(rows: Any, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Any:
    """Column input_ids in the place of text, a row for each piece of a text."""

    def encode_rows(rows: dict[str, list[str]]) -> dict[str, list]:
        encoded = tokenizer(rows["text"], truncation=True, max_length=max_length, return_overflowing_tokens=True)
        return {"input_ids": encoded["input_ids"]}

    return rows.map(encode_rows, batched=True, remove_columns=["text"])


def make_trainer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, args: MaskedLanguageModelArguments, splits: Any
) -> RecipeTrainer:
    return RecipeTrainer(
        model=model,
        args=args,
        data_collator=ReproducibleMasking(tokenizer, mlm_probability=args.mask_probability),
        processing_class=tokenizer,
        **encoded_splits(splits, lambda rows: encode(rows, tokenizer, args.max_length)),
    )


def evaluate(trainer: RecipeTrainer, splits: Any) -> Evaluation:
    def score(rows: Any) -> dict[str, float]:
        loss = measure(trainer, encode(rows, trainer.processing_class, trainer.args.max_length))["loss"]
        return {"loss": loss, "perplexity": math.exp(loss)}

    return score_splits(splits, score), {}


def main(arguments: list[str] | None = None) -> Scores:
    """Run the script; returns the scores by split."""
    options, data, tokenizing, training = parse(
        VanillaTransformerEncoderConfig, MaskedLanguageModelArguments, arguments
    )
    splits = load_splits(data, "language_modeling")
    texts = texts_of(splits["train"], "language_modeling")
    tokenizer = make_tokenizer(tokenizing, options.model_name_or_path, texts, "encoder")
    model = make_model(VanillaTransformerForMaskedLM, options, tokenizer)
    trainer = make_trainer(model, tokenizer, training, splits)
    return run(trainer, splits, evaluate, "fill-mask", data.name)


if __name__ == "__main__":
    main()
