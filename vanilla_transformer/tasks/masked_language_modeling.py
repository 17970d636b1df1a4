"""Masked language modeling: pretrain an encoder by predicting masked tokens."""

import zlib
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn import functional as F
from transformers import DataCollatorForLanguageModeling, PreTrainedConfig, PreTrainedTokenizerBase

from vanilla_transformer import VanillaTransformerForMaskedLM
from vanilla_transformer.modeling_vanilla_transformer import IGNORED_LABEL
from vanilla_transformer.tasks.language_modeling import LanguageModelingTask, PerTargetTrainer, tokens_of
from vanilla_transformer.tasks.metrics import perplexity, unigram_loss
from vanilla_transformer.tasks.task import Example, Notes, Rows, Scores, Task, as_code, measure, unwrap_for_eval
from vanilla_transformer.training.arguments import RecipeArguments
from vanilla_transformer.training.trainer import RecipeTrainerMixin


@dataclass
class MaskedLanguageModelingArguments(RecipeArguments):
    """Training options of the recipe, plus the maximum length of a row and the mask probability.

    Raises:
        ValueError: `mask_probability` is out of range.
    """

    max_length: int = field(default=256, metadata={"help": "Split texts into pieces of this many tokens."})
    mask_probability: float = field(default=0.15, metadata={"help": "Fraction of tokens to mask and predict."})

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.mask_probability <= 1:
            raise ValueError(f"mask_probability={self.mask_probability} must be greater than 0, and at most 1.")


class ReproducibleMasking(DataCollatorForLanguageModeling):
    """Like the base class, but the random seed is a hash of the batch.

    The masks are therefore the same in every evaluation, and in a resumed run despite its different random state. They
    still differ between epochs, because the batches do.
    """

    def torch_mask_tokens(self, inputs: Tensor, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """Like the base class, but seed the generator with a hash of the inputs first."""
        self.generator = torch.Generator().manual_seed(zlib.crc32(inputs.numpy().tobytes()))
        return super().torch_mask_tokens(inputs, *arguments, **options)


class MaskedLanguageModelingTask(Task):
    """The masked tokens of a text."""

    name = "masked_language_modeling"
    data = LanguageModelingTask.data
    model_class = VanillaTransformerForMaskedLM
    pipeline_tag = "fill-mask"
    usage = """\
fill = pipeline("fill-mask", model=folder, trust_remote_code=True)
print(fill(f"A sentence with a {fill.tokenizer.mask_token} in it."))"""
    arguments_class = MaskedLanguageModelingArguments
    trainer_class = PerTargetTrainer
    metric_names = LanguageModelingTask.metric_names
    metrics = LanguageModelingTask.metrics

    arguments: MaskedLanguageModelingArguments

    def encode(self, rows: Rows, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> Rows:
        """Tokenize the texts and split them into rows of up to `max_length` tokens. Streams are encoded lazily."""
        options = {"tokenizer": tokenizer, "max_length": self.arguments.max_length}
        return rows.map(encode_rows, batched=True, remove_columns=["text"], fn_kwargs=options)

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: Any) -> ReproducibleMasking:
        """Return the collator that masks random tokens."""
        return ReproducibleMasking(tokenizer, mlm_probability=self.arguments.mask_probability)

    def evaluate(self, trainer: RecipeTrainerMixin, rows: Rows) -> tuple[dict[str, float], Notes]:
        """Compute the loss in nats per masked token, and the perplexity."""
        loss = measure(trainer, self.encode(rows, trainer.processing_class, trainer.model.config))["loss"]
        return {"loss": loss, "perplexity": perplexity(loss)}, {}

    @torch.no_grad()
    def examples(self, trainer: RecipeTrainerMixin, rows: Dataset) -> list[Example]:
        """Return each text with its masked tokens filled in by the model. The score is the negative loss."""
        model, tokenizer, examples = unwrap_for_eval(trainer), cast(Any, trainer.processing_class), []
        collate = self.collator(tokenizer, model)
        for text in rows["text"]:
            ids = tokenizer(text, truncation=True, max_length=self.arguments.max_length)["input_ids"]
            batch = {name: value.to(model.device) for name, value in collate([{"input_ids": ids}]).items()}
            labels = batch.pop("labels")[0]
            masked = labels != IGNORED_LABEL
            if not masked.any():
                continue
            logits = model(**batch).logits[0].float()
            loss = F.cross_entropy(logits[masked], labels[masked]).item()
            shown = batch["input_ids"][0]
            filled = torch.where(masked, logits.argmax(dim=-1), shown)
            source, output = (tokenizer.decode(each[1:-1]) for each in (shown, filled))
            examples.append(Example(source, text, output, -loss))
        return examples

    def baselines(self, trainer: RecipeTrainerMixin, train: Dataset, rows: Dataset) -> Scores:
        """Return the scores of a unigram model, which uses only token frequencies."""
        tokens, seen = (tokens_of(trainer.processing_class, part) for part in (rows, train))
        loss = unigram_loss(seen, tokens, trainer.model.config.vocab_size)
        return {"unigram model": {"loss": loss, "perplexity": perplexity(loss)}}

    def pipeline_input(self, row: dict[str, Any]) -> str:
        """Return the beginning of the text, followed by a mask, as Python code."""
        return as_code(" ".join([*row["text"].split()[:-1][:20], "<mask>"]))


def encode_rows(
    rows: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> dict[str, list[list[int]]]:
    """Tokenize a batch of texts, splitting long ones into rows of up to `max_length` tokens."""
    encoded = tokenizer(rows["text"], truncation=True, max_length=max_length, return_overflowing_tokens=True)
    return {"input_ids": encoded["input_ids"]}
