"""Load this project's saved models: with their own heads, by the installed classes, and only with sound weights."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.utils import cached_file, logging

import vanilla_transformer
from vanilla_transformer.conversion.mapping import MAPPINGS


FAMILIES = (
    vanilla_transformer.VanillaTransformerConfig,
    vanilla_transformer.VanillaTransformerEncoderConfig,
    vanilla_transformer.VanillaTransformerDecoderConfig,
)
# What each class is called in errors.
KINDS = {
    "VanillaTransformerForConditionalGeneration": "a translator",
    "VanillaTransformerForCausalLM": "a language model",
    "VanillaTransformerForMaskedLM": "a masked language model",
    "VanillaTransformerForSequenceClassification": "a classifier",
    "VanillaTransformerForTokenClassification": "a tagger",
    "VanillaTransformerForQuestionAnswering": "a model for question answering",
    "VanillaTransformerModel": "an encoder-decoder without output layer",
    "VanillaTransformerEncoderModel": "an encoder without head",
    "VanillaTransformerDecoderModel": "a decoder without output layer",
}
MODELS = tuple(KINDS)

# The trained models that ship with this project: in a clone, and in a Space. For an installed copy the Hub has them.
CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
HUB_NAME = "vanilla-transformer/vanilla-transformer"


def shipped_models() -> list[str]:
    """The folders of the models that ship with this project, as far as they are here."""
    return sorted(str(config.parent) for config in CHECKPOINTS.glob("*/config.json"))


def shipped_model(name: str) -> str:
    """The folder of a model that ships with this project, such as "en-es": that of the clone, else from the Hub.

    Raises:
        FileNotFoundError: it is neither here nor on the Hub, or the Hub does not answer.
    """
    if (CHECKPOINTS / name).is_dir():
        return str(CHECKPOINTS / name)
    try:
        copy = snapshot_download(HUB_NAME, allow_patterns=f"checkpoints/{name}/*")
    except OSError as error:
        raise FileNotFoundError(
            f"There is no {CHECKPOINTS / name}, and {HUB_NAME} could not be fetched from the Hub ({error}): "
            "give a model with --model."
        ) from error
    return f"{copy}/checkpoints/{name}"


@contextmanager
def errors_only() -> Iterator[None]:
    """Without the library's reports below errors, where ours say the same."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def read_settings(file: Path) -> dict[str, Any]:
    """What the config of a model or a tokenizer says.

    Raises:
        ValueError: it is no JSON, or no object.
    """
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not a valid JSON file: {error}.") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{file} holds {settings!r}; it must be an object of settings.")
    return settings


def read_object(file: Path, setting: str) -> dict[str, Any]:
    """A setting that is an object itself, such as `auto_map`; empty where there is none.

    Raises:
        ValueError: it is something else, or the file is no JSON, or no object.
    """
    value = read_settings(file).get(setting) or {}
    if not isinstance(value, dict):
        raise ValueError(f"{file}: {setting} is {value!r}; it must be an object.")
    return value


def check_source(source: str | Path, short_names: bool = False) -> None:
    """Tell a folder that is not there from a name on the Hub, which is one of an owner and one of a model.

    Args:
        source: of a model.
        short_names: whether a name without an owner will do, as some of the library's oldest models have (gpt2).

    Raises:
        FileNotFoundError: there is no such folder, or it holds no model.
        ValueError: its config.json is no JSON, or no object.
    """
    path = Path(source)
    if path.is_dir():
        file = path / "config.json"
        if not file.is_file():
            raise FileNotFoundError(f"{source} holds no model: it has no config.json.")
        read_settings(file)
        return
    may_be_a_name = (len(path.parts) == 2 and not path.parent.is_dir()) or (short_names and len(path.parts) == 1)
    if not may_be_a_name or path.is_file():
        raise FileNotFoundError(
            f"{source}: there is no such folder. Give that of a trained model, or a name on the Hub, such as "
            "owner/model."
        )


def wrong_class(source: str | Path, config: PreTrainedConfig, architecture: str, heads: Iterable[str]) -> ValueError:
    """The error for a model of none of the classes `heads`, in words."""
    if architecture in KINDS:
        what = f"{source} is {KINDS[architecture]} ({architecture})"
    else:
        what = f"{source} holds a model of class {architecture}, which is not one of this project's"
        if config.model_type in MAPPINGS:
            what += f"; scripts/import_checkpoint.py makes one of it (model_type={config.model_type!r})"
    return ValueError(f"{what}; needed is {' or '.join(KINDS[head] for head in heads)}.")


def has_code(source: str | Path, reference: str, revision: str | None) -> bool:
    """Whether the file of a class lies beside the weights, as it does not where several models share it (checkpoints).

    Args:
        reference: what a config names as its class, as "file.Class", or "other/repository--file.Class".
    """
    file = f"{reference.split('.')[0]}.py"
    return "--" in reference or bool(
        cached_file(source, file, revision=revision, _raise_exceptions_for_missing_entries=False)
    )


def class_beside_the_weights(
    source: str | Path, config: PreTrainedConfig, heads: Iterable[str], revision: str | None
) -> type[PreTrainedModel] | None:
    """The class that the source's own code has in the place of one of `heads`; None where it has no such code."""
    code, architectures = getattr(config, "auto_map", None) or {}, config.architectures or []
    wanted = {auto for family in FAMILIES for auto, name in family.auto_classes.items() if name in heads}
    for reference in (code[auto] for auto in wanted & code.keys()):
        if reference.split(".")[-1] in architectures and has_code(source, reference, revision):
            return get_class_from_dynamic_module(reference, str(source), revision=revision)
    return None


def model_class(
    source: str | Path,
    heads: tuple[str, ...] = MODELS,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> type[PreTrainedModel]:
    """Find the class of a saved model.

    Args:
        source: its folder, or its name on the Hub.
        heads: names of the acceptable classes.
        trust_remote_code: run the code beside the weights, if there is any, and return its class.
        revision: of a model on the Hub.

    Raises:
        FileNotFoundError: there is no such folder, or it holds no model.
        ValueError: it is of another class.
    """
    check_source(source)
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code, revision=revision)
    except StrictDataclassError as error:
        raise ValueError(f"{source} has an invalid config.json: {error}") from error
    if trust_remote_code and (remote := class_beside_the_weights(source, config, heads, revision)):
        return remote
    architecture = (config.architectures or ["none"])[0]
    if architecture not in heads:
        raise wrong_class(source, config, architecture, heads)
    return getattr(vanilla_transformer, architecture)


def load_model(
    source: str | Path,
    heads: tuple[str, ...] = MODELS,
    trust_remote_code: bool = False,
    revision: str | None = None,
    **options,
) -> PreTrainedModel:
    """Load a saved model, in evaluation mode, with the installed code unless told otherwise.

    Args:
        options: further arguments of `from_pretrained`, such as `attn_implementation`.
    For the other arguments see `model_class`, and for further errors `load_whole`.
    """
    loaded_class = model_class(source, heads, trust_remote_code, revision)
    return load_whole(loaded_class, source, trust_remote_code=trust_remote_code, revision=revision, **options)


def load_tokenizer(source: str | Path, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer of a saved model, by its folder or its name on the Hub.

    Raises:
        ValueError: the folder has none; the library would have one built by packages that are not there.
    """
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    except ValueError as error:
        if Path(source).is_dir() and not any(Path(source).glob("tokenizer*")):
            raise ValueError(f"{source} has no tokenizer beside the model: put its files there.") from error
        raise


def load_whole(loaded_class: type[PreTrainedModel], source: str | Path, **options) -> PreTrainedModel:
    """A saved model of a class, in evaluation mode, where its weights are all there and make sense.

    Args:
        options: of `from_pretrained`.

    Raises:
        ValueError: weights are missing, left over, of another shape, or not finite; or a file is damaged.
    """
    try:
        with errors_only():
            loaded: Any = loaded_class.from_pretrained(
                source,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # so that they are in the report
                **options,
            )
    except SafetensorError as error:
        raise ValueError(f"{source}: the file of its weights is damaged or cut short ({error}).") from error
    except (RuntimeError, StrictDataclassError) as error:
        raise ValueError(f"{source} cannot be loaded: {' '.join(str(error).split())}") from error
    model, report = loaded  # as it gives with output_loading_info
    check_weights(source, model, report)
    return model.eval()


def check_weights(source: str | Path, model: PreTrainedModel, report: dict) -> None:
    """Look through what `from_pretrained` reports with `output_loading_info`, and through the numbers themselves.

    Raises:
        ValueError: weights are missing, left over, of another shape than the config says, or not finite.
    """
    shapes = [f"{name} is {tuple(saved)}, not {tuple(wanted)}" for name, saved, wanted in report["mismatched_keys"]]
    state = model.state_dict(keep_vars=True)
    damaged = [name for name, weight in state.items() if weight.is_floating_point() and not weight.isfinite().all()]
    for problem, names in (
        ("lacks weights that its config asks for", report["missing_keys"]),
        ("has weights that its config knows nothing of", report["unexpected_keys"]),
        ("has weights of other shapes than its config says", shapes),
        ("has weights that are not finite numbers", damaged),
    ):
        if names:
            raise ValueError(f"{source} {problem}: {listed(names)}.")


def listed(names: Iterable[str], most: int = 5) -> str:
    """The first names, and how many more there are."""
    first, rest = sorted(names)[:most], sorted(names)[most:]
    return ", ".join(first) + (f" and {len(rest)} more" if rest else "")


def weights_hash(model: PreTrainedModel) -> str:
    """A hash of a model's weights, with their names, types and shapes: what was made from them knows them by it."""
    total = hashlib.blake2b(digest_size=8)
    for name, weight in model.state_dict().items():
        total.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        total.update(weight.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return total.hexdigest()
