"""Build a datastore of text pairs, which a saved translator looks up while it translates.

vanilla-transformer datastore --model runs/en-de --train_file pairs.jsonl --columns source=en target=de
vanilla-transformer translate --model runs/en-de --datastore < source.txt > target.txt

The pairs may be its training data, or other text of the kind that it will translate. It is not trained again.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.cli.parser import TRUST_REMOTE_CODE, CommandParser
from vanilla_transformer.data.arguments import DataArguments
from vanilla_transformer.data.splits import load_splits
from vanilla_transformer.datastore import Datastore, build_datastore
from vanilla_transformer.fast import make_fast
from vanilla_transformer.files import check_source
from vanilla_transformer.loading import load_model, load_tokenizer
from vanilla_transformer.tasks.translation import TranslationTask, encode_pairs
from vanilla_transformer.training.batching import TokenBudgetSampler, row_lengths


@dataclass
class DatastoreArguments:
    """Options of `datastore`: the model, and the influence of the neighbours."""

    model: str = field(metadata={"help": "Folder of the model; the datastore is saved in it."})
    neighbours: int = field(
        default=Datastore.neighbours, metadata={"help": "Number of most similar states that vote."}
    )
    share: float = field(
        default=Datastore.share, metadata={"help": "Weight of the similar states in a prediction, from 0 to 1."}
    )
    temperature: float = field(
        default=Datastore.temperature,
        metadata={"help": "Temperature of the softmax over cosine similarities. Lower values favour similar states."},
    )
    max_length: int = field(default=256, metadata={"help": "Truncate texts to this many tokens."})
    trust_remote_code: bool = field(default=False, metadata=TRUST_REMOTE_CODE)


def batches_of(rows: Dataset, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> DataLoader:
    """Return a loader that yields each encoded row once, in batches of similar length."""
    lengths = row_lengths(rows)
    sampler = TokenBudgetSampler(lengths, max(4096, int(lengths.max())))
    return DataLoader(
        cast(Any, rows), batch_sampler=sampler, collate_fn=DataCollatorForSeq2Seq(tokenizer, model=model)
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command.

    Raises:
        FileNotFoundError: the model does not exist.
        ValueError: the model is on the Hub or is not a translator; there are no pairs, or they are streamed; a setting
            is out of range.
    """
    parser = CommandParser([DatastoreArguments, DataArguments], __doc__)
    parser.set_defaults(validation_fraction=0.0)  # by default, hold out no pairs
    args, data = parser.parse_args_into_dataclasses(arguments)
    settings = {name: getattr(args, name) for name in ("neighbours", "share", "temperature")}
    Datastore(None, "", **settings)  # report invalid settings before the slow part
    check_source(args.model)
    if not Path(args.model).is_dir():
        raise ValueError(f"--model {args.model} must be a folder, where the datastore is saved: download it first.")
    if data.streaming:
        raise ValueError("--streaming true: a datastore keeps all pairs, and a stream may have no end: leave it out.")
    splits = load_splits(data, TranslationTask.data)
    if "train" not in splits:
        raise ValueError("There are no pairs: give --train_file, or a --dataset with a train split.")
    model = make_fast(load_model(args.model, ("VanillaTransformerForConditionalGeneration",), args.trust_remote_code))
    tokenizer = load_tokenizer(args.model, args.trust_remote_code)
    rows = encode_pairs(splits["train"], tokenizer, args.max_length)
    store = build_datastore(model, batches_of(rows, model, tokenizer), **settings)
    store.save(args.model)
    print(f"The datastore has {store.index.ntotal} tokens. To use it: translate --model {args.model} --datastore")
