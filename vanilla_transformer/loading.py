"""Load saved models with the installed model classes, and report damaged or missing files."""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.utils import cached_file
from transformers.utils import logging as library_logging

import vanilla_transformer
from vanilla_transformer.files import CHECKPOINTS, check_source


logger = logging.getLogger(__name__)
FAMILIES = (
    vanilla_transformer.VanillaTransformerConfig,
    vanilla_transformer.VanillaTransformerEncoderConfig,
    vanilla_transformer.VanillaTransformerDecoderConfig,
)
AUTO_CLASSES = {name: auto for family in FAMILIES for auto, name in family.auto_classes.items()}
MODELS = tuple(AUTO_CLASSES)
HUB_NAME = "vanilla-transformer/vanilla-transformer"


def shipped_model(name: str) -> str:
    """Return the folder of a shipped model such as "en-es", downloading it from the Hub if it is not in the clone.

    Raises:
        FileNotFoundError: the model is neither local nor on the Hub, or the Hub cannot be reached.
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
def errors_only(progress: bool) -> Iterator[None]:
    """Silence transformers' warnings, which this module's checks replace; hide progress bars unless `progress`."""
    level, bars = library_logging.get_verbosity(), library_logging.is_progress_bar_enabled()
    library_logging.set_verbosity_error()
    if not progress:
        library_logging.disable_progress_bar()
    try:
        yield
    finally:
        library_logging.set_verbosity(level)
        if bars:
            library_logging.enable_progress_bar()


def find_device(name: str | None) -> str:
    """Return the device `name`; if it is None, return "cuda" if available and "cpu" otherwise.

    Raises:
        ValueError: the device is not available to PyTorch.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    counts = {"cpu": 1} | ({accelerator.type: torch.accelerator.device_count()} if accelerator else {})
    found = [device for kind, count in counts.items() for device in (kind, *(f"{kind}:{i}" for i in range(count)))]
    if name is not None and name not in found:
        raise ValueError(f"--device {name}: PyTorch finds {', '.join(found)} on this machine.")
    return name or ("cuda" if torch.cuda.is_available() else "cpu")


def wrong_class(source: str | Path, architecture: str, heads: Iterable[str]) -> ValueError:
    """Return the ValueError to raise for a model whose class is not in `heads`."""
    wanted = "one of this project" if {*heads} >= {*MODELS} else f"a {' or '.join(heads)}"
    convert = "" if architecture in MODELS else ", or try to convert it with `vanilla-transformer import`"
    return ValueError(f"{source} is a model of class {architecture}; give {wanted}{convert}.")


@contextmanager
def errors_name(what: str) -> Iterator[None]:
    """Convert any error raised while reading `what` to a ValueError that names it.

    For damaged files, libraries raise exceptions of many types. OSError and ImportError, as for missing files and
    packages, are not converted.
    """
    try:
        yield
    except (OSError, ImportError):
        raise
    except SafetensorError as error:
        raise ValueError(f"{what}: the file with its weights is damaged or truncated ({error}).") from error
    except Exception as error:
        message = " ".join(str(error).split())
        raise ValueError(f"{what} cannot be loaded ({type(error).__name__}): {message}") from error


def model_class(
    source: str | Path,
    heads: tuple[str, ...] = MODELS,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> type[PreTrainedModel]:
    """Return the class of a saved model: the installed class or, if trusted, the class in the model folder.

    Args:
        source: folder of the model, or its name on the Hub.
        heads: names of the accepted classes.
        trust_remote_code: run the code in the model folder, if it contains any.
        revision: branch, tag or commit of a model on the Hub.

    Raises:
        FileNotFoundError: the folder does not exist, or contains no model.
        ValueError: the class is not in `heads`, or the config is damaged.
    """
    check_source(source)
    with errors_name(f"{source}/config.json"):
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code, revision=revision)
    architecture = (config.architectures or ["none"])[0]
    code = getattr(config, "auto_map", None) or {} if trust_remote_code else {}
    for reference in (code.get(AUTO_CLASSES[head], "") for head in heads):
        with errors_name(f"{source}: its code"):
            if reference.endswith(f".{architecture}") and has_code(source, reference, revision):
                return get_class_from_dynamic_module(reference, str(source), revision=revision)
    if architecture not in heads:
        raise wrong_class(source, architecture, heads)
    return getattr(vanilla_transformer, architecture)


def has_code(source: str | Path, reference: str, revision: str | None) -> bool:
    """Whether the code that an `auto_map` reference names is available.

    "file.Class" refers to the model folder; models in `checkpoints/` do not contain that file, because they share the
    repository's code. "other/repository--file.Class" refers to another repository on the Hub, which is not checked.
    """
    file = f"{reference.split('.')[0]}.py"
    return "--" in reference or bool(
        cached_file(source, file, revision=revision, _raise_exceptions_for_missing_entries=False)
    )


def load_model(
    source: str | Path,
    heads: tuple[str, ...] = MODELS,
    trust_remote_code: bool = False,
    revision: str | None = None,
    **options,
) -> PreTrainedModel:
    """Load a saved model in evaluation mode, and check that its weights are complete and finite.

    Args:
        source, heads, trust_remote_code, revision: see `model_class`.
        options: further arguments of `from_pretrained`, such as `attn_implementation`.

    Raises:
        FileNotFoundError: the folder does not exist, or contains no model.
        ValueError: the class is not in `heads`; weights are missing, unexpected, of the wrong shape, or not finite; or
            a file is damaged.
    """
    loaded_class = model_class(source, heads, trust_remote_code, revision)
    with errors_name(str(source)), errors_only(progress=not Path(source).is_dir()):  # show the progress of downloads
        loaded: Any = loaded_class.from_pretrained(
            source,
            trust_remote_code=trust_remote_code,
            revision=revision or "main",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # report mismatched shapes instead of raising
            **options,
        )
    model, report = loaded
    check_weights(source, model, report)
    return model.eval()


def load_tokenizer(
    source: str | Path, trust_remote_code: bool = False, revision: str | None = None
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a saved model, given its folder or its name on the Hub.

    Raises:
        ValueError: the folder contains no tokenizer, or the tokenizer files are damaged.
    """
    if Path(source).is_dir() and not any(Path(source).glob("tokenizer*")):
        raise ValueError(f"{source} has no tokenizer next to the model: put its files there.")
    with errors_name(f"{source}: its tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code, revision=revision)
        settings, _ = PreTrainedConfig.get_config_dict(source, revision=revision)
    check_tokenizer(source, settings.get("tokenizer_hash"), tokenizer)
    return tokenizer


def vocabulary_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of the tokens and ids of a tokenizer."""
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.blake2b(vocabulary.encode(), digest_size=8).hexdigest()


def match_tokenizer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Store the tokenizer's hash in the model's config, and the model's maximum length in the tokenizer."""
    config: Any = model.config
    config.tokenizer_hash = vocabulary_hash(tokenizer)
    tokenizer.model_max_length = min(tokenizer.model_max_length, config.max_position_embeddings)


def check_tokenizer(source: str | Path, expected: str | None, tokenizer: PreTrainedTokenizerBase) -> None:
    """Warn if the tokenizer's `vocabulary_hash` differs from `expected`, the hash stored with the model."""
    if expected not in (None, vocabulary_hash(tokenizer)):
        logger.warning(
            "%s was not trained with this tokenizer, which has other tokens: unless you have added tokens, "
            "use the tokenizer that was saved with the model.",
            source,
        )


def check_weights(source: str | Path, model: PreTrainedModel, report: dict) -> None:
    """Check the loading info of `from_pretrained` (`output_loading_info`), and that all weights are finite.

    Raises:
        ValueError: weights are missing, unexpected, of a different shape than the config requires, or not finite.
    """
    shapes = [f"{name} is {tuple(saved)}, not {tuple(wanted)}" for name, saved, wanted in report["mismatched_keys"]]
    state = model.state_dict(keep_vars=True)
    damaged = [name for name, weight in state.items() if weight.is_floating_point() and not weight.isfinite().all()]
    for problem, names in (
        ("lacks weights that its config requires", report["missing_keys"]),
        ("has weights that its config does not have", report["unexpected_keys"]),
        ("has weights of other shapes than its config requires", shapes),
        ("has weights that are not finite numbers", damaged),
    ):
        if names:
            raise ValueError(f"{source} {problem}: {listed(names)}.")


def listed(names: Iterable[str], most: int = 5) -> str:
    """Return the first `most` names, sorted and separated by commas, and the number of remaining names."""
    first, rest = sorted(names)[:most], sorted(names)[most:]
    return ", ".join(first) + (f" and {len(rest)} more" if rest else "")


def weights_hash(model: PreTrainedModel) -> str:
    """Return a hash of a model's weights (names, dtypes, shapes and values), to identify files derived from them."""
    total = hashlib.blake2b(digest_size=8)
    for name, weight in model.state_dict().items():
        total.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        total.update(weight.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return total.hexdigest()
