"""Causal language modeling: predict the next token of running text."""

import math
import shlex
from dataclasses import dataclass, field
from itertools import chain
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
from vanilla_transformer.tasks.metrics import language_model_scores, unigram_loss
from vanilla_transformer.tasks.task import Example, Notes, Rows, Scores, Task, measure, unwrap_for_eval
from vanilla_transformer.training.arguments import RecipeArguments
from vanilla_transformer.training.batching import pack_documents
from vanilla_transformer.training.trainer import RecipeTrainer, RecipeTrainerMixin


@dataclass
class LanguageModelingArguments(RecipeArguments):
    """Training options of the recipe, plus the block size."""

    LIMITS = RecipeArguments.LIMITS | {"block_size": (2, math.inf)}

    block_size: int = field(default=256, metadata={"help": "Tokens per training row; rows are filled with documents."})


class PerTargetTrainer(RecipeTrainer):
    """Like `RecipeTrainer`, but evaluates the mean loss over all targets.

    `Trainer` averages over batches, although these have different numbers of targets.
    """

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Like `Trainer.prediction_step`, but return per-row sums instead of logits and labels.

        The logits are replaced by the summed loss of each row (batch,), the labels by its number of targets (batch,).
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
        """Return the model's maximum length as the block size for scoring."""
        return {"block_size": config.max_position_embeddings}

    def config_fields(self, rows: Rows, model_options: Any) -> dict[str, Any]:
        """Set the maximum length of a new model to the block size, unless an option sets it."""
        if model_options.model_name_or_path is not None or model_options.max_position_embeddings is not None:
            return {}
        return {"max_position_embeddings": self.arguments.block_size}

    def encode(self, rows: Rows, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> Rows:
        """Tokenize documents and pack them into blocks of input_ids, position_ids and labels, lazily for streams.

        Raises:
            ValueError: there is too little text to fill one block.
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
        """Return the mean loss over all targets, given the sums of a `PerTargetTrainer`; NaN without targets."""
        losses, numbers = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
        return {"loss": losses.sum(dtype=np.float64) / numbers.sum() if numbers.any() else math.nan}

    def evaluate(self, trainer: RecipeTrainerMixin, rows: Rows) -> tuple[dict[str, float], Notes]:
        """Compute the loss in nats per token, the perplexity, and the bits per byte of text."""
        tokenizer = trainer.processing_class
        loss = measure(trainer, self.encode(rows, tokenizer, trainer.model.config))["loss"]
        return self.scores_of(loss, rows, len(tokens_of(tokenizer, rows))), {}

    @staticmethod
    def scores_of(loss: float, rows: Rows, tokens: int) -> dict[str, float]:
        """Return the loss, perplexity and bits per byte. `tokens` is the number of tokens in the rows."""
        text_bytes = sum(len(row["text"].encode()) for row in rows)
        return {"loss": loss} | language_model_scores(loss, tokens, text_bytes)

    @torch.no_grad()
    def examples(self, trainer: RecipeTrainerMixin, rows: Dataset) -> list[Example]:
        """Continue the first half of each text by up to ten tokens. The score is the negative loss of the text."""
        model, tokenizer, examples = unwrap_for_eval(trainer), trainer.processing_class, []
        for text in rows["text"]:
            options = {"truncation": True, "max_length": min(40, self.arguments.block_size), "return_tensors": "pt"}
            ids = tokenizer(text, split_special_tokens=True, **options)["input_ids"].to(model.device)
            half = ids.shape[1] // 2
            if not half:
                continue
            loss = F.cross_entropy(model(input_ids=ids).logits[0, :-1].float(), ids[0, 1:]).item()
            mask = torch.ones_like(ids[:, :half])
            output = model.generate(ids[:, :half], attention_mask=mask, max_new_tokens=min(10, half), do_sample=False)
            parts = ids[0, :half], ids[0, half : half + 10], output[0, half:]
            source, target, written = tokenizer.batch_decode(parts, skip_special_tokens=True)
            examples.append(Example(source, target, written, -loss))
        return examples

    def baselines(self, trainer: RecipeTrainerMixin, train: Dataset, rows: Dataset) -> Scores:
        """Return the scores of a unigram model, which uses only token frequencies."""
        tokens = tokens_of(trainer.processing_class, rows)
        seen = tokens_of(trainer.processing_class, train)
        loss = unigram_loss(seen, tokens, trainer.model.config.vocab_size)
        return {"unigram model": self.scores_of(loss, rows, len(tokens))}

    def shell_command(self, folder: str, row: dict[str, Any]) -> str:
        """Return the command that generates a continuation of the first five words of a row."""
        beginning = " ".join(row["text"].split()[:5])
        return f"vanilla-transformer generate {shlex.quote(beginning)} --model {shlex.quote(folder)}"


def tokens_of(tokenizer: PreTrainedTokenizerBase, rows: Rows) -> list[int]:
    """Return the token ids of all rows in a single list."""
    texts = [row["text"] for row in rows]
    return [*chain(*tokenizer(texts, verbose=False, split_special_tokens=True)["input_ids"])]


def encode_rows(
    rows: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase, block_size: int
) -> dict[str, list[list[int]]]:
    """Tokenize a batch of documents and pack them into full blocks of input_ids, position_ids and labels."""
    # treat "</s>" in the data as ordinary text
    documents = tokenizer(rows["text"], verbose=False, split_special_tokens=True)["input_ids"]
    return pack_documents(documents, block_size, tokenizer.eos_token_id)
