"""Whether a checkpoint belongs to the run that goes on from it: the same data, order, architecture and tokenizer."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from tokenizers import Tokenizer
from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import CONFIG_NAME

from vanilla_transformer.training.checkpoints import read_run_file


def digest(rows: Any) -> str | None:
    """A hash of encoded rows, in their order; None for rows that are not at hand."""
    if not isinstance(rows, Dataset):
        return None
    total = hashlib.blake2b(digest_size=8)
    for table in rows.with_format("arrow").iter(batch_size=10_000):
        for name in sorted(table.column_names):
            values = table[name].combine_chunks()
            while pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
                total.update(pc.list_value_length(values).to_numpy(zero_copy_only=False).tobytes())
                values = pc.list_flatten(values)
            plain = values.to_numpy(zero_copy_only=False)
            total.update(repr(plain.tolist()).encode() if plain.dtype == object else plain.tobytes())
    return total.hexdigest()


# Set by saving, by the library's Trainer, or without a say in what is computed.
NOT_COMPARED = {
    "_attn_implementation", "_name_or_path", "architectures", "auto_map", "dtype", "problem_type",
    "transformers_version", "use_cache", "vanilla_transformer_version",
}  # fmt: skip


# Options that are off unless they are given, with what they are then. Run files of earlier versions may leave one out,
# which says that it was off.
OFF = {
    "tokens_per_batch": 0,
    "mixed_lengths": False,
    "embedding_decay": 0.0,
    "initial_dropout": None,
    "word_dropout": 0.0,
}


def config_differences(folder: Path, config: PreTrainedConfig) -> list[str]:
    """What a checkpoint's config says otherwise, but for fields without a say in what is computed."""
    saved = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
    if saved.get("model_type") != config.model_type:
        return [f"model_type is {config.model_type}, and was {saved.get('model_type')}"]
    # Through JSON, which knows neither tuples nor numbers as keys.
    then, now = (json.loads(c.to_json_string(use_diff=False)) for c in (type(config).from_dict(saved), config))
    names = [name for name in now if name not in NOT_COMPARED and not name.endswith("_token_id")]
    return [f"{name} is {now[name]}, and was {then.get(name)}" for name in names if now[name] != then.get(name)]


def tokenizer_differences(folder: Path, tokenizer: PreTrainedTokenizerBase | None) -> list[str]:
    """Whether a checkpoint's tokenizer gives other ids, and for how many tokens; nothing where it has none."""
    file = folder / "tokenizer.json"
    if tokenizer is None or not file.is_file() or getattr(tokenizer, "backend_tokenizer", None) is None:
        return []
    texts = file.read_text(encoding="utf-8"), tokenizer.backend_tokenizer.to_str()
    then, now = map(json.loads, texts)
    for state in (then, now):  # how texts are cut and filled up is set anew at each call
        state["truncation"] = state["padding"] = None
    if then == now:
        return []
    ids, before = tokenizer.get_vocab(), Tokenizer.from_str(json.dumps(then)).get_vocab()
    others = sum(ids.get(token) != number for token, number in before.items())
    return [f"the tokenizer is another one, in which {others} of {len(before)} tokens have another id or none"]


def check_same_run(folder: Path, facts: dict[str, Any], config: PreTrainedConfig, tokenizer: Any) -> None:
    """Refuse to go on from a checkpoint with another architecture, tokenizer, data or order of them.

    Args:
        facts: what the run is started with now, to be compared with the checkpoint's `RUN_FILE`.

    Raises:
        ValueError: names all that differs.
    """
    written = read_run_file(folder)
    then = OFF | written if written else {}  # of another program's checkpoint nothing is known
    differences = config_differences(folder, config) + tokenizer_differences(folder, tokenizer)
    differences += [
        f"{name} is {value}, and was {then[name]}" for name, value in facts.items() if then.get(name, value) != value
    ]
    if differences:
        raise ValueError(
            f"{folder} is a checkpoint of another run: {'; '.join(differences)}. Resume with what that run was "
            "started with, or start a new one in another --output_dir."
        )
