"""Causal language modeling: predict the next token of running text."""

import math
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn import functional as F
from transformers import EvalPrediction, PreTrainedConfig, PreTrainedTokenizerBase, default_data_collator

from vanilla_transformer import VanillaTransformerForCausalLM
from vanilla_transformer.data.columns import TEXT, Schema
from vanilla_transformer.modeling_vanilla_transformer import IGNORED_LABEL
from vanilla_transformer.tasks.metrics import language_model_scores
from vanilla_transformer.tasks.task import Notes, Rows, Task, measure
from vanilla_transformer.training.arguments import RecipeArguments
from vanilla_transformer.training.batching import pack_documents
from vanilla_transformer.training.trainer import RecipeTrainer, RecipeTrainerMixin


@dataclass
class LanguageModelingArguments(RecipeArguments):
    """Training options of the recipe, plus the length of a row."""

    LIMITS = RecipeArguments.LIMITS | {"block_size": (2, math.inf)}

    block_size: int = field(default=256, metadata={"help": "Tokens per training row; rows are filled with documents."})


class PerTargetTrainer(RecipeTrainer):
    """Like `RecipeTrainer`, but evaluates the mean loss over all targets.

    `Trainer` computes the mean over batches, which have different numbers of targets.
    """

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Like `Trainer.prediction_step`, but returns the summed loss and the number of targets of each row.

        They replace logits and labels; each is (batch,).
        """
        only_logits = [*(ignore_keys or []), "hidden_states", "attentions"]
        loss, logits, labels = cast(Any, super().prediction_step(model, inputs, False, only_logits))
        if self.model.can_generate():
            logits, labels = logits[:, :-1], labels[:, 1:]
        losses = [
            F.cross_entropy(scores.float(), targets, ignore_index=IGNORED_LABEL, reduction="sum")
            for scores, targets in zip(logits, labels, strict=True)
        ]
        return loss, torch.stack(losses), (labels != IGNORED_LABEL).sum(dim=1)


class LanguageModelingTask(Task):
    """The next token of running text."""

    name = "language_modeling"
    data = Schema({"text": TEXT}, phrasebook="language_modeling", documents=True)
    model_class = VanillaTransformerForCausalLM
    template = "causal"
    pipeline_tag = "text-generation"
    usage = """\
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
batch = tokenizer(["Once"], return_tensors="pt")
print(tokenizer.batch_decode(model.generate(**batch, do_sample=True), skip_special_tokens=True))"""
    arguments_class = LanguageModelingArguments
    trainer_class = PerTargetTrainer
    metric_names = ("loss",)

    arguments: LanguageModelingArguments

    @classmethod
    def saved_options(cls, config: PreTrainedConfig) -> dict[str, Any]:
        """Return the model's number of positions as the length of the rows to score."""
        return {"block_size": config.max_position_embeddings}

    def config_fields(self, rows: Rows, model_options: Any) -> dict[str, Any]:
        """Return one position per token of a row for a new model, unless an option sets them."""
        if model_options.model_name_or_path is not None or model_options.max_position_embeddings is not None:
            return {}
        return {"max_position_embeddings": self.arguments.block_size}

    def encode(self, rows: Rows, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> Rows:
        """Return blocks filled with documents: input_ids, position_ids and labels. Streams are encoded lazily.

        Raises:
            ValueError: the text does not fill one block.
        """
        block_size = self.arguments.block_size
        options = {"tokenizer": tokenizer, "block_size": block_size}
        blocks = rows.map(encode_rows, batched=True, batch_size=10_000, remove_columns=["text"], fn_kwargs=options)
        if isinstance(blocks, Dataset) and not len(blocks):
            raise ValueError(
                f"The text of {len(rows)} rows does not fill one block of --block_size {block_size} tokens: lower "
                "that, or give more text."
            )
        return blocks

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: Any) -> Any:
        """Return transformers' default collator, because all rows have the same length."""
        return default_data_collator

    def metrics(self, config: PreTrainedConfig, prediction: EvalPrediction) -> dict[str, float]:
        """Return the mean loss over all targets of a `PerTargetTrainer`; nan without targets."""
        losses, numbers = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
        return {"loss": losses.sum(dtype=np.float64) / numbers.sum() if numbers.any() else math.nan}

    def evaluate(self, trainer: RecipeTrainerMixin, rows: Rows) -> tuple[dict[str, float], Notes]:
        """Compute the loss in nats per token, the perplexity, and the bits per byte of text."""
        tokenizer = trainer.processing_class
        loss = measure(trainer, self.encode(rows, tokenizer, trainer.model.config))["loss"]
        texts = [row["text"] for row in rows]
        tokens = sum(map(len, tokenizer(texts, verbose=False, split_special_tokens=True)["input_ids"]))
        text_bytes = sum(len(text.encode()) for text in texts)
        return {"loss": loss} | language_model_scores(loss, tokens, text_bytes), {}


def encode_rows(
    rows: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase, block_size: int
) -> dict[str, list[list[int]]]:
    """Return input_ids, position_ids and labels of full blocks, instead of text."""
    # "</s>" in a text is ordinary text
    documents = tokenizer(rows["text"], verbose=False, split_special_tokens=True)["input_ids"]
    return pack_documents(documents, block_size, tokenizer.eos_token_id)
