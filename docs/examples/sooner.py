"""All training levers in a plain `Seq2SeqTrainer`: each numbered line is a row of docs/levers.md.

python sooner.py pairs.jsonl runs/sooner                 # rows with "source" and "target"
"""

import sys

from datasets import load_dataset
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.data import train_tokenizer
from vanilla_transformer.fast import make_fast
from vanilla_transformer.fast.memory import keep_freed_memory
from vanilla_transformer.tasks.translation import concatenate_pairs
from vanilla_transformer.training import DropoutSchedule, init_small, muon_with_adam


file, folder = sys.argv[1:]
pairs = load_dataset("json", data_files=file, split="train")
tokenizer = train_tokenizer([*pairs["source"], *pairs["target"]], "seq2seq", kind="unigram", vocab_size=1000)  # 1
rows = pairs.map(lambda row: tokenizer(row["source"], text_target=row["target"]), remove_columns=pairs.column_names)
rows = concatenate_pairs(rows.remove_columns("attention_mask"), share=0.5, max_length=256, seed=0)  # 2
config = VanillaTransformerConfig(
    vocab_size=len(tokenizer), d_model=64, d_ff=256, num_heads=4, encoder_layers=2, decoder_layers=2, dropout=0.2,
    norm_position="pre",  # 3
)  # fmt: skip
model = init_small(VanillaTransformerForConditionalGeneration(config))  # 4
make_fast(model)  # 5: skips padding, computes the loss in chunks, faster dropout, oneDNN products
keep_freed_memory()  # 6
optimizer = muon_with_adam(model, lr=1e-2, weight_decay=0.1, embedding_decay=0.1)  # 7, 8, 9
trainer = Seq2SeqTrainer(
    model=model,
    args=Seq2SeqTrainingArguments(
        folder, max_steps=100, warmup_steps=10, lr_scheduler_type="linear", per_device_train_batch_size=32
    ),
    train_dataset=rows,
    data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    processing_class=tokenizer,
    optimizers=(optimizer, None),
    callbacks=[DropoutSchedule(0.05)],  # 10
)
trainer.train()
trainer.save_model()
