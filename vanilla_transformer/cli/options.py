"""Command-line options of the model: a preset from Table 3 or a checkpoint, and all fields of its config."""

import dataclasses
import json
import re
import types
import typing
from dataclasses import dataclass, field, make_dataclass
from difflib import get_close_matches
from typing import Any, Literal, cast

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.cli.parser import CommandParser
from vanilla_transformer.cli.recipes import is_recipe, read_recipe
from vanilla_transformer.configuration_vanilla_transformer import PRESETS, TransformerConfig
from vanilla_transformer.data.arguments import replaced_options
from vanilla_transformer.fast import LOSS_CHUNK_SIZE, make_fast
from vanilla_transformer.files import check_source
from vanilla_transformer.loading import check_tokenizer, match_tokenizer, wrong_class
from vanilla_transformer.training.optimizer import init_small


@dataclass
class ModelSource:
    """Options of the model: a checkpoint or a preset, and how to run it.

    Raises:
        ValueError: the preset does not exist.
        FileNotFoundError: the checkpoint does not exist.
    """

    model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "Continue from this checkpoint (a folder or a Hub name) instead of starting a new model."},
    )
    preset: str = field(
        default="base", metadata={"help": f"Size of a new model, a row of the paper's Table 3: {', '.join(PRESETS)}."}
    )
    init: Literal["default", "small"] = field(
        default="default",
        metadata={
            "help": "Initial weights of a new model: default (Xavier) or small (variance 2 / (5 fan_in)). With small, "
            "translators need fewer steps; models of one layer need more."
        },
    )
    attn_implementation: str = field(
        default="packed_sdpa",
        metadata={
            "help": "How attention is computed: packed_sdpa (leaves padding out of all layers), sdpa, eager, "
            "flash_attention_2 or flex_attention."
        },
    )
    loss_chunk_size: int = field(
        default=LOSS_CHUNK_SIZE,
        metadata={
            "help": "In training, compute the loss over the vocabulary for this many positions at a time: the "
            "same loss in less memory and time. 0 means all at once."
        },
    )

    def __post_init__(self):
        if self.preset not in PRESETS:
            near = get_close_matches(self.preset, PRESETS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"choose one of: {', '.join(PRESETS)}."
            raise ValueError(f"There is no preset {self.preset!r}; {hint}")
        if self.model_name_or_path is not None:
            check_source(self.model_name_or_path, short_names=True)


# Config fields that are set by the tokenizer, Trainer or the model family
NOT_OPTIONS = {"vocab_size", "use_cache", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"}


def explanations(config_class: type) -> dict[str, str]:
    """Return the help text of each config field, taken from the docstrings of the config class."""
    found: dict[str, str] = {}
    for cls in reversed(config_class.__mro__):
        for names, lines in re.findall(
            r"^        ([a-z_, ]+): (.+(?:\n            .+)*)", cls.__doc__ or "", re.MULTILINE
        ):
            text = " ".join(lines.split())
            found |= dict.fromkeys(names.split(", "), (text[:1].upper() + text[1:]).replace("%", "%%"))
    return found


def plain_type(annotation: Any) -> Any:
    """Return the type of an option. For a union such as `float | int`, this is the first member."""
    if isinstance(annotation, types.UnionType):
        return next(member for member in typing.get_args(annotation) if member is not type(None))
    return annotation


def model_options(config_class: type) -> type:
    """Build a dataclass of options: those of `ModelSource`, and all fields of `config_class` with the default None.

    Raises:
        KeyError: a field is not documented in a docstring.
    """
    others = NOT_OPTIONS | {f.name for f in dataclasses.fields(PreTrainedConfig)}
    types_of = {f.name: plain_type(f.type) for f in dataclasses.fields(config_class) if f.name not in others}
    texts = explanations(config_class)
    options = [
        (name, kind | None, field(default=None, metadata={"help": texts[name]})) for name, kind in types_of.items()
    ]
    documented = {"__doc__": ModelSource.__doc__}
    return make_dataclass("ModelOptions", options, bases=(ModelSource,), namespace=documented)


def check_model(model_class: type[PreTrainedModel], options: Any) -> None:
    """Validate the model options before reading data.

    Raises:
        ValueError: the checkpoint is from another model family, or its weights do not fit an option.
        StrictDataclassError: the config is not valid.
    """
    config_class = cast(type[TransformerConfig], model_class.config_class)
    if options.model_name_or_path is None:
        config_class.from_preset(options.preset, **given_fields(options))
        return
    found = AutoConfig.from_pretrained(options.model_name_or_path)
    if found.model_type != config_class.model_type:
        architecture = (found.architectures or ["none"])[0]
        raise wrong_class(options.model_name_or_path, architecture, [model_class.__name__])
    for name, value in given_fields(options).items():
        saved = getattr(found, name)
        if value != saved:
            changed = config_class.from_dict(found.to_dict() | {name: value})
            if shapes(model_class, changed) != shapes(model_class, found):
                raise ValueError(
                    f"--{name} {value} does not fit {options.model_name_or_path}, a checkpoint with {name}={saved}: "
                    "leave that option out."
                )


def shapes(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> dict[str, torch.Size]:
    """Return the shapes of all weights except those of the head, which may differ from the checkpoint's."""
    with torch.device("meta"):
        model = model_class(config)
    return {name: weight.shape for name, weight in model.base_model.named_parameters()}


def given_fields(options: Any) -> dict[str, Any]:
    """Return the config fields that are set by the options, with their values."""
    source = {f.name for f in dataclasses.fields(ModelSource)}
    return {name: value for name, value in vars(options).items() if name not in source and value is not None}


def make_model(
    model_class: type[PreTrainedModel], options: Any, tokenizer: PreTrainedTokenizerBase, **task_fields: Any
) -> PreTrainedModel:
    """Create a new model, or load the checkpoint named in `options` and report missing and unused weights.

    Args:
        options: an instance of `model_options(model_class.config_class)`.
        task_fields: config fields that depend on the data, such as `id2label`.

    Raises:
        ValueError: the preset is unknown, the checkpoint's weights do not fit the options or the data, or the
            checkpoint's vocabulary is smaller than the tokenizer's.
        StrictDataclassError: the config is not valid.
    """
    given = given_fields(options)
    if options.model_name_or_path is None:
        token_ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
        config_class = cast(type[TransformerConfig], model_class.config_class)
        fields = given | token_ids | task_fields
        config = config_class.from_preset(options.preset, vocab_size=len(tokenizer), **fields)
        model = model_class(config)
        match_tokenizer(model, tokenizer)
        return fast(init_small(model) if options.init == "small" else model, options)

    try:
        # Many checkpoints are saved in 16 bits; in that precision, small updates would be rounded away.
        model = model_class.from_pretrained(options.model_name_or_path, dtype=torch.float32, **given, **task_fields)
    except RuntimeError as error:
        raise ValueError(
            f"{options.model_name_or_path} cannot be loaded; does the data have other classes than "
            f"its training data? {' '.join(str(error).split())}"
        ) from error
    if len(tokenizer) > model.config.vocab_size:
        raise ValueError(
            f"The tokenizer has {len(tokenizer)} tokens, but {options.model_name_or_path} has an embedding for "
            f"{model.config.vocab_size}: use the tokenizer that was saved with it."
        )
    check_tokenizer(options.model_name_or_path, getattr(model.config, "tokenizer_hash", None), tokenizer)
    match_tokenizer(model, tokenizer)
    return fast(model, options)


def fast(model: PreTrainedModel, options: ModelSource) -> PreTrainedModel:
    """Enable the speed-ups that are selected in `options`."""
    model.set_attn_implementation(options.attn_implementation)
    return make_fast(
        model, packing=options.attn_implementation == "packed_sdpa", loss_chunk_size=options.loss_chunk_size
    )


def recipe_arguments(file: str, parser: CommandParser, overriding: list[str]) -> list[str]:
    """Return a recipe's options as command-line arguments, without the task and the data that `overriding` replaces.

    Raises:
        FileNotFoundError, ValueError: see `read_recipe`.
    """
    replaced = replaced_options(parser.given_names(overriding))
    recipe = read_recipe(file, parser.names)
    return as_arguments({name: value for name, value in recipe.items() if name.replace("-", "_") not in replaced})


def as_arguments(recipe: dict[str, Any]) -> list[str]:
    """Return options as command-line arguments. Options without a value are left out."""
    arguments = []
    for name, value in recipe.items():
        if value in (None, []):
            continue
        if isinstance(value, list):
            arguments += [f"--{name}", *map(str, value)]
        else:
            # YAML parses the "no" in `save_strategy: no` as false.
            text = "no" if value is False else value if isinstance(value, str) else json.dumps(value)
            arguments.append(f"--{name}={text}")
    return arguments


def parse_options(
    dataclasses: list[type], arguments: list[str], description: str | None = None, usage: str | None = None
) -> tuple[Any, ...]:
    """Parse the arguments into an instance of each dataclass. Options after a recipe file override the recipe.

    Args:
        description, usage: parts of the help text.

    Raises:
        FileNotFoundError, ValueError: see `read_recipe`; also if an option does not exist.
    """
    parser = CommandParser(dataclasses, description, usage=usage)
    if arguments and is_recipe(arguments[0]):
        arguments = [*recipe_arguments(arguments[0], parser, arguments[1:]), *arguments[1:]]
    return parser.parse_args_into_dataclasses(arguments)
