"""Train a causal language model.

python scripts/train_language_model.py --preset tiny --train_file shakespeare.txt --tokenizer_kind character
"""

from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase, default_data_collator

from batching import pack_documents
from data_loading import load_splits
from metrics import language_model_scores
from model_card import CardFacts
from model_options import make_model
from recipe import RecipeArguments, RecipeTrainer
from training import make_tokenizer, parse, print_scores, save, train
from vanilla_transformer import VanillaTransformerDecoderConfig, VanillaTransformerForCausalLM


@dataclass
class LanguageModelArguments(RecipeArguments):
    block_size: int = field(default=256, metadata={"help": "Tokens of one training row, filled with documents."})


def encode(splits: Any, tokenizer: PreTrainedTokenizerBase, block_size: int) -> Any:
    """Documents in full blocks: input_ids, position_ids and labels in the place of text."""

    def encode_rows(rows: dict[str, list[str]]) -> dict[str, list]:
        documents = tokenizer(rows["text"], verbose=False)["input_ids"]
        return pack_documents(documents, block_size, tokenizer.eos_token_id)

    return splits.map(encode_rows, batched=True, batch_size=10_000, remove_columns=["text"])


def main(arguments: list[str] | None = None) -> dict[str, dict[str, float]]:
    """Run the script; returns the scores by split."""
    options, data, tokenizing, training = parse(VanillaTransformerDecoderConfig, LanguageModelArguments, arguments)
    splits = load_splits(data, "language_modeling")
    texts = (row["text"] for row in splits["train"])
    tokenizer = make_tokenizer(tokenizing, options.model_name_or_path, texts, "causal")
    model = make_model(VanillaTransformerForCausalLM, options, tokenizer)
    # Documents are told apart by their positions, which works without a cache of earlier keys only.
    model.config.use_cache = False

    encoded = encode(splits, tokenizer, training.block_size)
    for split, rows in encoded.items():
        if not data.streaming and not len(rows):
            raise ValueError(f"The {split} text does not fill one block of --block_size {training.block_size} tokens.")
    trainer = RecipeTrainer(
        model=model,
        args=training,
        train_dataset=encoded["train"],
        eval_dataset=encoded.get("validation"),
        data_collator=default_data_collator,
        processing_class=tokenizer,
    )
    if training.do_train:
        train(trainer)

    scores = {}
    for split in ("validation", "test"):
        if split in splits:
            loss = trainer.evaluate(encoded[split])["eval_loss"]
            sizes = [
                (len(tokenizer(row["text"], verbose=False)["input_ids"]), len(row["text"].encode()))
                for row in splits[split]
            ]
            scores[split] = {"loss": loss} | language_model_scores(loss, *map(sum, zip(*sizes, strict=True)))
    model.config.use_cache = True
    print_scores(scores)
    save(trainer, CardFacts("text-generation", data.name, scores))
    return scores


if __name__ == "__main__":
    main()
