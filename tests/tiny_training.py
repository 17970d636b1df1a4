"""Run a tiny training, inside the process of a test or as a script in one or several processes.

python tests/tiny_training.py FOLDER '{"tokens_per_batch": 64}'
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from datasets import Dataset
from transformers import DataCollatorForSeq2Seq

from family import encoder_decoder
from vanilla_transformer.data.tokenizer import train_tokenizer
from vanilla_transformer.training.arguments import RecipeArguments
from vanilla_transformer.training.checkpoints import last_checkpoint
from vanilla_transformer.training.trainer import RecipeSeq2SeqTrainer


class ShardingTrainer(RecipeSeq2SeqTrainer):
    """Shard the model with FSDP2 on a CPU, by declaring the processes as XPUs: accelerate requires an accelerator."""

    def create_accelerator_and_postprocess(self) -> None:
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_XPU
        super().create_accelerator_and_postprocess()


def tiny_trainer(folder: Path, dropout: float = 0.1, streaming: bool = False, **options) -> RecipeSeq2SeqTrainer:
    random = np.random.default_rng(0)
    rows = [random.integers(3, 50, size=random.integers(2, 9)).tolist() for _ in range(40)]
    torch.manual_seed(0)
    model = encoder_decoder(dropout=dropout)
    defaults = {
        "num_train_epochs": 2, "warmup_steps": 5, "logging_steps": 1, "save_steps": 3, "use_cpu": True,
        "disable_tqdm": True, "per_device_train_batch_size": 8,
    }  # fmt: skip
    data = Dataset.from_dict({"input_ids": rows, "labels": rows})
    held_out = data.select(range(8))
    trainer_class = ShardingTrainer if options.get("fsdp") else RecipeSeq2SeqTrainer
    return trainer_class(
        model=model,
        args=RecipeArguments(output_dir=str(folder), **(defaults | options)),
        train_dataset=data.to_iterable_dataset() if streaming else data,
        eval_dataset=held_out.to_iterable_dataset() if streaming else held_out,
        data_collator=DataCollatorForSeq2Seq(train_tokenizer(["a b c"] * 3, vocab_size=300), model=model),
    )


def main(folder: str, options: str) -> None:
    given = json.loads(options)
    resume = given.pop("resume", False) and last_checkpoint(Path(folder)) is not None
    trainer = tiny_trainer(Path(folder), **given)
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model()
    trainer.save_state()


if __name__ == "__main__":
    main(*sys.argv[1:])
