"""Causal language modelling: the next token of running text."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from datasets import Dataset
from transformers import PreTrainedTokenizerBase, default_data_collator

from vanilla_transformer import VanillaTransformerForCausalLM
from vanilla_transformer.tasks.metrics import language_model_scores
from vanilla_transformer.tasks.task import Notes, PerTargetTrainer, Rows, Task, loss_per_target, measure
from vanilla_transformer.training.batching import pack_documents
from vanilla_transformer.training.recipe import PaperRecipe, RecipeArguments


@dataclass
class LanguageModelArguments(RecipeArguments):
    """Options of training: the recipe's, and the length of a row."""

    LEAST: ClassVar[dict[str, int]] = {**RecipeArguments.LEAST, "block_size": 2}

    block_size: int = field(default=256, metadata={"help": "Tokens per training row; rows are filled with documents."})


def encode_rows(
    rows: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase, block_size: int
) -> dict[str, list[list[int]]]:
    """Documents in full blocks: input_ids, position_ids and labels in the place of text."""
    documents = tokenizer(rows["text"], verbose=False, split_special_tokens=True)["input_ids"]  # "</s>" is text
    return pack_documents(documents, block_size, tokenizer.eos_token_id)


def encode(rows: Rows, tokenizer: PreTrainedTokenizerBase, block_size: int) -> Rows:
    """Documents in full blocks, as `encode_rows` gives them; of a stream, as it comes.

    Raises:
        ValueError: the text does not fill one block.
    """
    options = {"tokenizer": tokenizer, "block_size": block_size}
    blocks = rows.map(encode_rows, batched=True, batch_size=10_000, remove_columns=["text"], fn_kwargs=options)
    if isinstance(blocks, Dataset) and not len(blocks):
        raise ValueError(
            f"The text of {len(rows)} rows does not fill one block of --block_size {block_size} tokens: lower that, "
            "or give more text."
        )
    return blocks


def evaluate(trainer: PaperRecipe, rows: Rows) -> tuple[dict[str, float], Notes]:
    """Loss in nats per token, perplexity, and bits per byte of the text."""
    args, tokenizer = cast(LanguageModelArguments, trainer.args), trainer.processing_class
    loss = measure(trainer, encode(rows, tokenizer, args.block_size))["loss"]
    texts = [row["text"] for row in rows]
    tokens = sum(map(len, tokenizer(texts, verbose=False, split_special_tokens=True)["input_ids"]))
    text_bytes = sum(len(text.encode()) for text in texts)
    return {"loss": loss} | language_model_scores(loss, tokens, text_bytes), {}


def longest_text(options: Any, args: LanguageModelArguments) -> dict[str, int]:
    """A new model reads as far as its training goes, unless it is told otherwise."""
    is_new = options.model_name_or_path is None
    return {"max_position_embeddings": args.block_size} if is_new and options.max_position_embeddings is None else {}


LANGUAGE_MODELING = Task(
    data="language_modeling",
    model_class=VanillaTransformerForCausalLM,
    template="causal",
    pipeline_tag="text-generation",
    arguments_class=LanguageModelArguments,
    encode=lambda rows, tokenizer, config, args: encode(rows, tokenizer, args.block_size),
    collator=lambda tokenizer, model, args: default_data_collator,
    evaluate=evaluate,
    metrics=loss_per_target,
    trainer_class=PerTargetTrainer,
    config_fields=lambda options, args, train: longest_text(options, args),
    saved_options=lambda config: {"block_size": config.max_position_embeddings},
)
