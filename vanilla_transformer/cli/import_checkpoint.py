"""Convert a published model to this project's classes, or one of this project's models to Marian or GPT-2.

vanilla-transformer import --source Helsinki-NLP/opus-mt-en-de --output runs/opus-mt-en-de
vanilla-transformer import --source runs/opus-mt-en-de --output runs/marian-en-de --to marian

It can import Marian (opus-mt), FSMT (WMT19), M2M100 and NLLB, BART, GPT-1, GPT-2, BERT and DistilBERT. The new folder
has weights, code, generation settings and tokenizer, and gives the same logits and the same generated text.
"""

import re
from dataclasses import dataclass, field

import transformers
from transformers import AutoConfig, PreTrainedModel

from vanilla_transformer.cli.parser import CommandParser
from vanilla_transformer.conversion.from_others import convert, convert_tokenizer, mapping_for
from vanilla_transformer.conversion.mapping import require
from vanilla_transformer.conversion.to_others import REVERSE
from vanilla_transformer.files import check_source, new_folder
from vanilla_transformer.loading import load_model, match_tokenizer
from vanilla_transformer.training.checkpoints import make_readable


@dataclass
class ImportArguments:
    """Options of `import`: source, output, and direction of the conversion."""

    source: str = field(metadata={"help": "Model folder, or name on the Hub."})
    output: str = field(metadata={"help": "Folder to create for the converted model."})
    to: str | None = field(
        default=None,
        metadata={
            "help": "Convert a model of this project to this architecture.",
            "choices": ["marian", "gpt2"],
        },
    )
    revision: str | None = field(default=None, metadata={"help": "Revision of the model on the Hub."})


def load(source: str, revision: str | None, to: str | None) -> PreTrainedModel:
    """Load and convert a model."""
    if to is None:
        check_source(source, short_names=True)
        config = AutoConfig.from_pretrained(source, revision=revision)
        mapping, architecture = mapping_for(config)
        theirs, loading = getattr(transformers, architecture).from_pretrained(
            source, revision=revision, output_loading_info=True
        )
        # Published BERT checkpoints may lack weights that our models do not use, such as poolers.
        missing = sorted(name for name in loading["missing_keys"] if not re.fullmatch(mapping.dropped, name))
        require(not missing, f"{source} has no weights for: {', '.join(missing)}.")
        return convert(theirs)
    expected, function = REVERSE[to]
    return function(load_model(source, (expected,), revision=revision))


def main(arguments: list[str] | None = None) -> None:
    """Run the command.

    Raises:
        ValueError: the target architecture does not support a feature of the model, or the output folder exists.
    """
    (args,) = CommandParser(ImportArguments, __doc__).parse_args_into_dataclasses(arguments)
    with new_folder(args.output) as part:
        model = load(args.source, args.revision, args.to)
        tokenizer = convert_tokenizer(args.source, args.revision, model)
        if args.to is None:
            match_tokenizer(model, tokenizer)
        model.save_pretrained(part)
        make_readable(part)
        tokenizer.save_pretrained(part)
    print(f"{args.output}: {type(model).__name__} with {model.num_parameters():,} parameters")
