"""Translate lines of text with a saved model: from a file or standard input to a file or standard output.

python scripts/translate.py --model FOLDER_OR_HUB_NAME < source.txt > target.txt
"""

from dataclasses import dataclass, field
from functools import partial

import torch
from transformers import AutoTokenizer

from vanilla_transformer.command_line import TRUST_REMOTE_CODE, CommandParser
from vanilla_transformer.decoding import EXTRA_TOKENS, translate
from vanilla_transformer.files import map_by_length, open_output, utf8_lines
from vanilla_transformer.loading import load_model
from vanilla_transformer.training.fast import fast_products


@dataclass
class TranslateArguments:
    """Options of the command: model, files, and how it decodes."""

    model: str = field(metadata={"help": "Folder of the model, or its name on the Hub."})
    input: str = field(default="-", metadata={"help": "File with one text a line; - is standard input."})
    output: str = field(default="-", metadata={"help": "File for the translations; - is standard output."})
    batch_size: int = field(default=64, metadata={"help": "Texts translated at once."})
    num_beams: int | None = field(default=None, metadata={"help": "Beam size; by default the model's own."})
    length_penalty: float | None = field(default=None, metadata={"help": "Its alpha; by default the model's own."})
    extra_tokens: int = field(default=EXTRA_TOKENS, metadata={"help": "Output length beyond the input's, in tokens."})
    device: str = field(default="cuda" if torch.cuda.is_available() else "cpu", metadata={"help": "Device."})
    trust_remote_code: bool = field(default=False, metadata=TRUST_REMOTE_CODE)


def main(arguments: list[str] | None = None) -> None:
    """Run the command.

    Raises:
        ValueError: the model is no translator, or the input is not UTF-8.
    """
    (args,) = CommandParser(TranslateArguments, __doc__).parse_args_into_dataclasses(arguments)
    loaded = load_model(args.model, ("VanillaTransformerForConditionalGeneration",), args.trust_remote_code)
    model = fast_products(loaded).to(args.device)
    tokenizer = AutoTokenizer.from_pretrained(args.model, trust_remote_code=args.trust_remote_code)
    lines = list(utf8_lines(args.input))
    options = {
        name: getattr(args, name) for name in ("num_beams", "length_penalty") if getattr(args, name) is not None
    }
    function = partial(translate, model=model, tokenizer=tokenizer, extra_tokens=args.extra_tokens, **options)
    with open_output(args.output) as stream:
        stream.writelines(f"{text}\n" for text in map_by_length(function, lines, args.batch_size, "translating"))
