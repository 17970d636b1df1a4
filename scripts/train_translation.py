"""Train a translator, or any model from text to text, with the paper's recipe.

python scripts/train_translation.py --preset tiny --train_file train.en train.de --output_dir runs/en-de
"""

from dataclasses import dataclass, field

from datasets import DatasetDict
from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerBase

from data_loading import load_splits
from decoding import EXTRA_TOKENS, paper_decoding, translate
from metrics import translation_scores
from model_card import CardFacts
from model_options import make_model
from recipe import RecipeArguments, RecipeSeq2SeqTrainer
from text_io import map_by_length
from training import make_tokenizer, parse, print_scores, save, train
from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration


@dataclass
class TranslationArguments(RecipeArguments):
    tokens_per_batch: int = field(
        default=25_000, metadata=RecipeArguments.__dataclass_fields__["tokens_per_batch"].metadata
    )
    average_checkpoints: int = field(
        default=5, metadata=RecipeArguments.__dataclass_fields__["average_checkpoints"].metadata
    )
    num_beams: int = field(default=4, metadata={"help": "Beam size of the final evaluation and of the saved model."})
    length_penalty: float = field(default=0.6, metadata={"help": "Alpha of the length penalty of Wu et al. (2016)."})
    extra_tokens: int = field(default=EXTRA_TOKENS, metadata={"help": "Output length beyond the input's, in tokens."})
    max_length: int = field(default=256, metadata={"help": "Cut longer training sequences to so many tokens."})


def encode(splits: DatasetDict, tokenizer: PreTrainedTokenizerBase, max_length: int) -> DatasetDict:
    """Columns input_ids and labels in the place of source and target."""

    def encode_rows(rows: dict) -> dict:
        encoded = tokenizer(rows["source"], truncation=True, max_length=max_length, return_attention_mask=False)
        labels = tokenizer(rows["target"], truncation=True, max_length=max_length)["input_ids"]
        return {**encoded, "labels": labels}

    return splits.map(encode_rows, batched=True, remove_columns=["source", "target"], desc="tokenizing")


def main(arguments: list[str] | None = None) -> dict[str, dict[str, float]]:
    """Run the script; returns the scores by split."""
    options, data, tokenizing, training = parse(VanillaTransformerConfig, TranslationArguments, arguments)
    splits = load_splits(data, "translation")
    texts = (row[side] for row in splits["train"] for side in ("source", "target"))
    tokenizer = make_tokenizer(tokenizing, options.model_name_or_path, texts, "seq2seq")
    model = make_model(VanillaTransformerForConditionalGeneration, options, tokenizer)
    model.generation_config.update(**paper_decoding(training.num_beams, training.length_penalty))

    encoded = encode(splits, tokenizer, training.max_length)
    trainer = RecipeSeq2SeqTrainer(
        model=model,
        args=training,
        train_dataset=encoded["train"],
        eval_dataset=encoded["validation"],
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
    )
    if training.do_train:
        train(trainer)

    model.eval()
    scores, notes = {}, {}
    for split in ("validation", "test"):
        if split in splits and trainer.is_world_process_zero():

            def function(batch: list[str]) -> list[str]:
                return translate(batch, model, tokenizer, training.extra_tokens)

            hypotheses = map_by_length(function, list(splits[split]["source"]), 64, f"translating {split}")
            scores[split], notes = translation_scores(hypotheses, list(splits[split]["target"]))
    print_scores(scores)
    print("\n".join(f"{name} signature: {signature}" for name, signature in notes.items()))
    save(trainer, CardFacts("translation", data.name, scores, notes))
    return scores


if __name__ == "__main__":
    main()
