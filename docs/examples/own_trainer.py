"""The paper's recipe in your own script, for any encoder-decoder: here a new Marian model or one of ours.

python own_trainer.py pairs.jsonl runs/own marian                 # rows with "source" and "target"
python own_trainer.py pairs.jsonl runs/own vanilla_transformer
"""

import sys

from datasets import load_dataset
from transformers import AutoConfig, AutoModelForSeq2SeqLM, DataCollatorForSeq2Seq

from vanilla_transformer import training  # registers our models with the Auto classes
from vanilla_transformer.data import train_tokenizer


file, folder, architecture = sys.argv[1:]
pairs = load_dataset("json", data_files=file, split="train")
tokenizer = train_tokenizer([*pairs["source"], *pairs["target"]], "seq2seq", vocab_size=1000)
rows = pairs.map(lambda row: tokenizer(row["source"], text_target=row["target"]), remove_columns=pairs.column_names)
config = AutoConfig.for_model(
    architecture, vocab_size=len(tokenizer), d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=256, decoder_ffn_dim=256, pad_token_id=tokenizer.pad_token_id,
    eos_token_id=tokenizer.eos_token_id, decoder_start_token_id=tokenizer.bos_token_id, forced_eos_token_id=None,
)  # fmt: skip
model = AutoModelForSeq2SeqLM.from_config(config)
# Adam, learning rate and batches of section 5; everything else is Trainer's default.
arguments = training.RecipeArguments(folder, tokens_per_batch=1000, max_steps=60, warmup_steps=20, save_steps=10)
trainer = training.RecipeSeq2SeqTrainer(
    model=model,
    args=arguments,
    train_dataset=rows,
    data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    processing_class=tokenizer,
)
trainer.train()
average = training.average_checkpoints(training.complete_checkpoints(folder)[-5:])  # section 6.1
model.load_state_dict(average, strict=False)  # tied weights are saved only once
trainer.save_model()
