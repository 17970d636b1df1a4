"""Train a causal language model.

python scripts/train_language_model.py --preset tiny --train_file shakespeare.txt --tokenizer_kind character
"""

from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, default_data_collator

from vanilla_transformer import VanillaTransformerDecoderConfig, VanillaTransformerForCausalLM
from vanilla_transformer.data.splits import load_splits, texts_of
from vanilla_transformer.training.batching import pack_documents
from vanilla_transformer.training.metrics import language_model_scores
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
class LanguageModelArguments(RecipeArguments):
    block_size: int = field(default=256, metadata={"help": "Tokens of one training row, filled with documents."})


def encode(rows: Any, tokenizer: PreTrainedTokenizerBase, block_size: int) -> Any:
    """Documents in full blocks: input_ids, position_ids and labels in the place of text.

    Raises:
        ValueError: the text does not fill one block.
    """

    def encode_rows(rows: dict[str, list[str]]) -> dict[str, list]:
        documents = tokenizer(rows["text"], verbose=False, split_special_tokens=True)["input_ids"]  # "</s>" is text
        return pack_documents(documents, block_size, tokenizer.eos_token_id)

    blocks = rows.map(encode_rows, batched=True, batch_size=10_000, remove_columns=["text"])
    if isinstance(blocks, Dataset) and not len(blocks):
        raise ValueError(f"The text of {len(rows)} rows does not fill one block of --block_size {block_size} tokens.")
    return blocks


def make_trainer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, args: LanguageModelArguments, splits: Any
) -> RecipeTrainer:
    return RecipeTrainer(
        model=model,
        args=args,
        data_collator=default_data_collator,
        processing_class=tokenizer,
        **encoded_splits(splits, lambda rows: encode(rows, tokenizer, args.block_size)),
    )


def evaluate(trainer: RecipeTrainer, splits: Any) -> Evaluation:
    tokenizer, block_size = trainer.processing_class, trainer.args.block_size

    def score(rows: Any) -> dict[str, float]:
        loss = measure(trainer, encode(rows, tokenizer, block_size))["loss"]
        texts = [row["text"] for row in rows]
        tokens = sum(map(len, tokenizer(texts, verbose=False, split_special_tokens=True)["input_ids"]))
        text_bytes = sum(len(text.encode()) for text in texts)
        return {"loss": loss} | language_model_scores(loss, tokens, text_bytes)

    return score_splits(splits, score), {}


def main(arguments: list[str] | None = None) -> Scores:
    """Run the script; returns the scores by split."""
    options, data, tokenizing, training = parse(VanillaTransformerDecoderConfig, LanguageModelArguments, arguments)
    splits = load_splits(data, "language_modeling")
    texts = texts_of(splits["train"], "language_modeling")
    tokenizer = make_tokenizer(tokenizing, options.model_name_or_path, texts, "causal")
    if options.model_name_or_path is None and options.max_position_embeddings is None:
        options.max_position_embeddings = training.block_size  # as far as training goes
    model = make_model(VanillaTransformerForCausalLM, options, tokenizer)
    trainer = make_trainer(model, tokenizer, training, splits)
    return run(trainer, splits, evaluate, "text-generation", data.name)


if __name__ == "__main__":
    main()
