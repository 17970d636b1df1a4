"""Pretrain an encoder by naming masked tokens; each other encoder task can go on from it with --model_name_or_path.

python scripts/train_masked_language_model.py --preset tiny --train_file text.txt --output_dir runs/encoder
"""

from dataclasses import dataclass, field

import torch
from transformers import DataCollatorForLanguageModeling

from data_loading import load_splits
from metrics import language_model_scores
from model_card import CardFacts
from model_options import make_model
from recipe import RecipeArguments, RecipeTrainer
from training import make_tokenizer, parse, print_scores, save, train
from vanilla_transformer import VanillaTransformerEncoderConfig, VanillaTransformerForMaskedLM


@dataclass
class MaskedLanguageModelArguments(RecipeArguments):
    max_length: int = field(default=256, metadata={"help": "Cut texts into pieces of so many tokens."})
    mask_probability: float = field(default=0.15, metadata={"help": "Share of the tokens that are to be predicted."})


def main(arguments: list[str] | None = None) -> dict[str, dict[str, float]]:
    """Run the script; returns the scores by split."""
    options, data, tokenizing, training = parse(
        VanillaTransformerEncoderConfig, MaskedLanguageModelArguments, arguments
    )
    splits = load_splits(data, "language_modeling")
    texts = (row["text"] for row in splits["train"])
    tokenizer = make_tokenizer(tokenizing, options.model_name_or_path, texts, "encoder")
    model = make_model(VanillaTransformerForMaskedLM, options, tokenizer)

    def encode_rows(rows: dict[str, list[str]]) -> dict[str, list]:
        encoded = tokenizer(
            rows["text"], truncation=True, max_length=training.max_length, return_overflowing_tokens=True
        )
        return {"input_ids": encoded["input_ids"]}

    encoded = splits.map(encode_rows, batched=True, remove_columns=["text"])
    trainer = RecipeTrainer(
        model=model,
        args=training,
        train_dataset=encoded["train"],
        eval_dataset=encoded.get("validation"),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=training.mask_probability),
        processing_class=tokenizer,
    )
    if training.do_train:
        train(trainer)

    scores = {}
    for split in ("validation", "test"):
        if split in encoded:
            torch.manual_seed(training.seed)  # the same tokens are masked in each evaluation
            loss = trainer.evaluate(encoded[split])["eval_loss"]
            scores[split] = {"loss": loss, "perplexity": language_model_scores(loss, 1, 1)["perplexity"]}
    print_scores(scores)
    save(trainer, CardFacts("fill-mask", data.name, scores))
    return scores


if __name__ == "__main__":
    main()
