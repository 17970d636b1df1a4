"""Options by which small models learn the phrasebook in minutes: two of the demo's first."""

_SIZE = "--d_model 128 --d_ff 512 --num_heads 4 --dropout 0 --learning_rate_scale 0.4 --logging_steps 50".split()

CLASSIFIER = [*_SIZE, *"""
    --num_layers 2 --vocab_size 4000 --tokens_per_batch 1000 --warmup_steps 200 --max_steps 1000 --save_strategy no
""".split()]  # fmt: skip
LANGUAGE_MODEL = [*_SIZE, *"""
    --num_layers 3 --vocab_size 2000 --block_size 128 --per_device_train_batch_size 16 --warmup_steps 200
    --max_steps 800 --save_strategy no
""".split()]  # fmt: skip
