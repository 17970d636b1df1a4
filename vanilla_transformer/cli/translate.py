"""Translate texts, or the lines of a file or of standard input, with a saved model.

vanilla-transformer translate "I like to travel."
vanilla-transformer translate --model FOLDER_OR_HUB_NAME < source.txt > target.txt
vanilla-transformer translate --model FOLDER_OR_HUB_NAME --engine ctranslate2 --quantization int8 < source.txt
"""

from dataclasses import dataclass, field
from functools import partial
from importlib import import_module

from vanilla_transformer.cli.export import QUANTIZATIONS
from vanilla_transformer.cli.parser import TRUST_REMOTE_CODE, CommandParser
from vanilla_transformer.decoding import EXTRA_TOKENS, longest_input, map_by_length, translate, warn_long_lines
from vanilla_transformer.fast import fast_products
from vanilla_transformer.files import check_output, check_texts, open_output, utf8_lines, write_lines
from vanilla_transformer.loading import find_device, load_model, load_tokenizer, shipped_model


DEFAULT_MODEL = "en-es"


@dataclass
class TranslateArguments:
    """Options of `translate`: the model, the files, and the decoding method.

    Raises:
        ValueError: a number is too small, the device does not exist, or options exclude each other.
    """

    model: str | None = field(
        default=None,
        metadata={"help": f"Model folder, or name on the Hub; by default checkpoints/{DEFAULT_MODEL}."},
    )
    input: str = field(default="-", metadata={"help": "File with one text per line; - is standard input."})
    output: str = field(default="-", metadata={"help": "File for the translations; - is standard output."})
    batch_size: int = field(default=64, metadata={"help": "Number of texts in a batch."})
    num_beams: int | None = field(default=None, metadata={"help": "Beam size. The default is the model's own."})
    length_penalty: float | None = field(
        default=None, metadata={"help": "Alpha of the length penalty. The default is the model's own."}
    )
    extra_tokens: int = field(
        default=EXTRA_TOKENS, metadata={"help": "Maximum number of tokens by which an output may exceed its input."}
    )
    device: str | None = field(
        default=None, metadata={"help": "Device to run on. The default is a GPU if there is one."}
    )
    engine: str = field(
        default="pytorch",
        metadata={
            "help": "PyTorch or CTranslate2, which is faster; the model is converted once, and the result kept in "
            "the model folder.",
            "choices": ["pytorch", "ctranslate2"],
        },
    )
    quantization: str | None = field(
        default=None, metadata={"help": "Type of the weights in CTranslate2.", "choices": list(QUANTIZATIONS)}
    )
    datastore: bool = field(
        default=False,
        metadata={"help": "Also look up similar states of the training data in the datastore of the model folder."},
    )
    trust_remote_code: bool = field(default=False, metadata=TRUST_REMOTE_CODE)

    def __post_init__(self):
        for name, least in {"batch_size": 1, "num_beams": 1, "extra_tokens": 0}.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"--{name} {value} must be at least {least}.")
        self.device = find_device(self.device)
        if self.datastore and self.engine != "pytorch":
            raise ValueError(f"--datastore is for PyTorch: leave out --engine {self.engine}.")
        if self.datastore:
            import_module("vanilla_transformer.datastore")  # fail now if FAISS is not installed
        if self.engine == "ctranslate2":
            import_module("vanilla_transformer.conversion.ctranslate2")
        if self.quantization is not None and self.engine != "ctranslate2":
            raise ValueError(f"--quantization {self.quantization} is for CTranslate2: add --engine ctranslate2.")


def main(arguments: list[str] | None = None) -> None:
    """Run the command.

    Raises:
        ValueError: the model is not a translator or not supported by CTranslate2, a text is not UTF-8, or both texts
            and a file are given.
        FileNotFoundError: no model is given, and the default model cannot be loaded.
        ImportError: CTranslate2 or FAISS is required but not installed.
    """
    parser = CommandParser(TranslateArguments, __doc__)
    parser.add_argument("text", nargs="*", help="Texts to translate, instead of --input.")
    args, given = parser.parse_args_into_dataclasses(arguments)
    check_texts(given.text, args.input)
    check_output(args.output)
    source = args.model or shipped_model(DEFAULT_MODEL)
    loaded = load_model(source, ("VanillaTransformerForConditionalGeneration",), args.trust_remote_code)
    model = fast_products(loaded).to(args.device)
    tokenizer = load_tokenizer(source, args.trust_remote_code)
    options = {
        name: getattr(args, name) for name in ("num_beams", "length_penalty") if getattr(args, name) is not None
    }
    options["extra_tokens"] = args.extra_tokens
    if args.engine == "ctranslate2":
        from vanilla_transformer.conversion.ctranslate2 import CTranslate2Translator  # an optional dependency

        function = partial(CTranslate2Translator(model, tokenizer, args.quantization).translate, **options)
    else:
        function = partial(translate, model=model, tokenizer=tokenizer, truncation=True, **options)
    if args.datastore:
        from vanilla_transformer.datastore import load_datastore, use_datastore

        use_datastore(model, load_datastore(source))
    lines = given.text or list(utf8_lines(args.input))
    limit = longest_input(tokenizer, model.config)
    warn_long_lines(lines, tokenizer, limit, f"first {limit}")
    with open_output(args.output) as stream:
        write_lines(stream, map_by_length(function, lines, args.batch_size, "translating"))
