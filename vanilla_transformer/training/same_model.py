"""Whether two sets of weights are of one model: the same architecture, and the same tokens."""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedConfig
from transformers.utils import CONFIG_NAME

from vanilla_transformer.loading import check_source, read_settings


TOKENIZER = "tokenizer.json"
# Set by saving, by the library's Trainer, or without a say in what is computed.
NOT_COMPARED = {
    "_attn_implementation", "_name_or_path", "architectures", "auto_map", "custom_pipelines", "dtype", "problem_type",
    "transformers_version", "use_cache", "vanilla_transformer_version",
}  # fmt: skip


def config_differences(folder: Path, config: PreTrainedConfig) -> list[str]:
    """What a checkpoint's config says otherwise, but for fields without a say in what is computed."""
    saved = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
    if saved.get("model_type") != config.model_type:
        return [f"model_type is {config.model_type}, and was {saved.get('model_type')}"]
    # Through JSON, which knows neither tuples nor numbers as keys.
    then, now = (json.loads(c.to_json_string(use_diff=False)) for c in (type(config).from_dict(saved), config))
    names = [name for name in now if name not in NOT_COMPARED and not name.endswith("_token_id")]
    return [f"{name} is {now[name]}, and was {then.get(name)}" for name in names if now[name] != then.get(name)]


def tokenizer_differences(folder: Path, tokenizer: Tokenizer | None) -> list[str]:
    """Whether a checkpoint's tokenizer gives other ids, and for how many tokens; nothing where it has none."""
    file = folder / TOKENIZER
    if tokenizer is None or not file.is_file():
        return []
    texts = file.read_text(encoding="utf-8"), tokenizer.to_str()
    then, now = map(json.loads, texts)
    for state in (then, now):  # how texts are cut and filled up is set anew at each call
        state["truncation"] = state["padding"] = None
    if then == now:
        return []
    ids, before = tokenizer.get_vocab(), Tokenizer.from_str(json.dumps(then)).get_vocab()
    others = sum(ids.get(token) != number for token, number in before.items())
    return [f"the tokenizer is another one, in which {others} of {len(before)} tokens have another id or none"]


def check_same_model(folders: Sequence[Path]) -> None:
    """Refuse to mix the weights of saved models that compute something else with them, or know other tokens.

    How they were trained, with how much dropout for example, may differ.

    Raises:
        FileNotFoundError: there is no such folder, or it holds no model.
        ValueError: names all in which a model differs from the last one.
    """
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: there is no such folder.")
        check_source(folder)
    *others, last = folders
    # As they stand in the files, so that nobody's own code is needed: a config has all fields of its model there. Its
    # class, too, whose head may have weights of the same names and shapes as another's.
    now = read_settings(last / CONFIG_NAME)
    names = [name for name in now if name not in NOT_COMPARED - {"architectures"} and not name.endswith("_token_id")]
    # A vocabulary's size is the shape of weights; that of the target may be given or not where it is no other.
    names = [name for name in names if "drop" not in name and name not in ("label_smoothing", "target_vocab_size")]
    tokenizer = Tokenizer.from_file(str(last / TOKENIZER)) if (last / TOKENIZER).is_file() else None
    for folder in others:
        then = read_settings(folder / CONFIG_NAME)
        both = [name for name in names if name in then]
        differences = [f"{name} is {now[name]}, and was {then[name]}" for name in both if now[name] != then[name]]
        differences += tokenizer_differences(folder, tokenizer)
        if differences:
            raise ValueError(f"{last} is another model than {folder}: {'; '.join(differences)}.")
