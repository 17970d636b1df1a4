"""Train a translator, or any model from text to text, with the paper's recipe.

python scripts/train_translation.py --preset tiny --train_file train.en train.de --output_dir runs/en-de
"""

from dataclasses import dataclass, field

from datasets import Dataset, DatasetDict
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.data.splits import load_splits, texts_of
from vanilla_transformer.data.tokenizer import lowercases
from vanilla_transformer.decoding import EXTRA_TOKENS, paper_decoding, translate
from vanilla_transformer.files import map_by_length
from vanilla_transformer.training.metrics import BleuOptions, translation_scores
from vanilla_transformer.training.options import make_model
from vanilla_transformer.training.recipe import RecipeArguments, RecipeSeq2SeqTrainer
from vanilla_transformer.training.run import HELD_OUT, Evaluation, Scores, encoded_splits, make_tokenizer, parse, run


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
    moses_language: str | None = field(
        default=None,
        metadata={
            "help": "Language of the targets, such as de: also give the BLEU of text that Moses' tokenizer has cut, "
            "as the paper and many others report it."
        },
    )
    split_compounds: bool = field(
        default=False, metadata={"help": "Split words at their hyphens for that BLEU, as the paper's authors did."}
    )


def encode(rows: Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Dataset:
    """Columns input_ids and labels in the place of source and target, where "</s>" is text."""

    def encode_texts(texts: list[str]) -> list[list[int]]:
        return tokenizer(texts, truncation=True, max_length=max_length, split_special_tokens=True)["input_ids"]

    def encode_rows(rows: dict) -> dict:
        return {"input_ids": encode_texts(rows["source"]), "labels": encode_texts(rows["target"])}

    return rows.map(encode_rows, batched=True, remove_columns=["source", "target"], desc="tokenizing")


def make_trainer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, args: TranslationArguments, splits: DatasetDict
) -> RecipeSeq2SeqTrainer:
    return RecipeSeq2SeqTrainer(
        model=model,
        args=args,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        **encoded_splits(splits, lambda rows: encode(rows, tokenizer, args.max_length)),
    )


def evaluate(trainer: RecipeSeq2SeqTrainer, splits: DatasetDict) -> Evaluation:
    """Translate the held-out splits, in the main process, as the model's generation config says."""
    model, tokenizer, args = trainer.model.eval(), trainer.processing_class, trainer.args
    scores, notes = {}, {}

    def translate_batch(batch: list[str]) -> list[str]:
        return translate(batch, model, tokenizer, args.extra_tokens)

    for split in HELD_OUT:
        if split in splits and trainer.is_world_process_zero():
            rows = splits[split]
            hypotheses = map_by_length(translate_batch, list(rows["source"]), 64, f"translating {split}")
            bleu = BleuOptions(lowercases(tokenizer), args.moses_language, args.split_compounds)
            scores[split], notes = translation_scores(hypotheses, list(rows["target"]), bleu)
    return scores, notes


def main(arguments: list[str] | None = None) -> Scores:
    """Run the script; returns the scores by split."""
    options, data, tokenizing, training = parse(VanillaTransformerConfig, TranslationArguments, arguments)
    splits = load_splits(data, "translation")
    texts = texts_of(splits["train"], "translation")
    tokenizer = make_tokenizer(tokenizing, options.model_name_or_path, texts, "seq2seq")
    model = make_model(VanillaTransformerForConditionalGeneration, options, tokenizer)
    model.generation_config.update(**paper_decoding(training.num_beams, training.length_penalty))
    trainer = make_trainer(model, tokenizer, training, splits)
    return run(trainer, splits, evaluate, "translation", data.name)


if __name__ == "__main__":
    main()
