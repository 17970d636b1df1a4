"""Masked language modelling: naming the masked tokens of a text, the pretraining of an encoder."""

import math
import zlib
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from vanilla_transformer import VanillaTransformerForMaskedLM
from vanilla_transformer.tasks.task import Notes, PerTargetTrainer, Rows, Task, loss_per_target, measure
from vanilla_transformer.training.recipe import PaperRecipe, RecipeArguments


@dataclass
class MaskedLanguageModelArguments(RecipeArguments):
    """Options of training: the recipe's, the longest text, and how much of it is masked.

    Raises:
        ValueError: nothing is masked, or more than everything.
    """

    max_length: int = field(default=256, metadata={"help": "Split texts into pieces of this many tokens."})
    mask_probability: float = field(default=0.15, metadata={"help": "Share of the tokens to predict."})

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.mask_probability <= 1:
            raise ValueError(f"mask_probability={self.mask_probability} must be greater than 0, and at most 1.")


class ReproducibleMasking(DataCollatorForLanguageModeling):
    """Masks drawn by a seed that the batch itself gives: other ones for other batches, in each epoch anew, but the
    same ones in a run that resumes, in which the random numbers have taken another course, and in each evaluation.
    """

    def torch_mask_tokens(self, inputs: Tensor, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """Masked inputs and their labels, as the library's, from the batch's own seed."""
        self.generator = torch.Generator().manual_seed(zlib.crc32(inputs.numpy().tobytes()))
        return super().torch_mask_tokens(inputs, *arguments, **options)


def encode_rows(
    rows: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> dict[str, list[list[int]]]:
    """A row for each piece of a text."""
    encoded = tokenizer(rows["text"], truncation=True, max_length=max_length, return_overflowing_tokens=True)
    return {"input_ids": encoded["input_ids"]}


def encode(rows: Rows, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Rows:
    """Column input_ids in the place of text; of a stream, as it comes."""
    options = {"tokenizer": tokenizer, "max_length": max_length}
    return rows.map(encode_rows, batched=True, remove_columns=["text"], fn_kwargs=options)


def evaluate(trainer: PaperRecipe, rows: Rows) -> tuple[dict[str, float], Notes]:
    """Loss in nats per masked token, and its perplexity."""
    args = cast(MaskedLanguageModelArguments, trainer.args)
    loss = measure(trainer, encode(rows, trainer.processing_class, args.max_length))["loss"]
    return {"loss": loss, "perplexity": math.exp(loss)}, {}


MASKED_LANGUAGE_MODELING = Task(
    data="language_modeling",
    model_class=VanillaTransformerForMaskedLM,
    template="encoder",
    pipeline_tag="fill-mask",
    arguments_class=MaskedLanguageModelArguments,
    encode=lambda rows, tokenizer, config, args: encode(rows, tokenizer, args.max_length),
    collator=lambda tokenizer, model, args: ReproducibleMasking(tokenizer, mlm_probability=args.mask_probability),
    evaluate=evaluate,
    metrics=loss_per_target,
    trainer_class=PerTargetTrainer,
)
