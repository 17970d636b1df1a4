"""Continue texts, or the lines of a file or of standard input, with a saved language model.

vanilla-transformer generate --model FOLDER_OR_HUB_NAME "To be"
echo "To be" | vanilla-transformer generate --model FOLDER_OR_HUB_NAME --max_new_tokens 100
"""

from dataclasses import dataclass, field
from functools import partial

from transformers import set_seed

from vanilla_transformer.cli.parser import TRUST_REMOTE_CODE, CommandParser
from vanilla_transformer.decoding import continue_text, longest_input, map_by_length, warn_long_lines
from vanilla_transformer.fast import fast_products
from vanilla_transformer.files import check_output, check_texts, open_output, utf8_lines, write_lines
from vanilla_transformer.loading import find_device, load_model, load_tokenizer


@dataclass
class GenerateArguments:
    """Options of `generate`: the model, the files, and how to choose the next token.

    Raises:
        ValueError: `batch_size` is below 1, or the device does not exist.
    """

    model: str = field(metadata={"help": "Model folder, or name on the Hub."})
    input: str = field(default="-", metadata={"help": "File with one prompt per line; - is standard input."})
    output: str = field(default="-", metadata={"help": "File for the texts; - is standard output."})
    batch_size: int = field(default=16, metadata={"help": "Number of prompts in a batch."})
    max_new_tokens: int = field(default=100, metadata={"help": "Maximum length of a continuation, in tokens."})
    do_sample: bool = field(
        default=True, metadata={"help": "Sample the next token; with false, take the most probable one."}
    )
    temperature: float = field(
        default=1.0, metadata={"help": "Values below 1 sharpen the distribution, values above 1 flatten it."}
    )
    top_k: int = field(
        default=50, metadata={"help": "Sample from this many of the most probable tokens; 0 means all."}
    )
    top_p: float = field(
        default=1.0, metadata={"help": "Sample from the most probable tokens with this total probability."}
    )
    seed: int = field(default=0, metadata={"help": "Seed for sampling."})
    device: str | None = field(
        default=None, metadata={"help": "Device to run on. The default is a GPU if there is one."}
    )
    trust_remote_code: bool = field(default=False, metadata=TRUST_REMOTE_CODE)

    def __post_init__(self):
        if self.batch_size < 1:
            raise ValueError(f"--batch_size {self.batch_size} must be at least 1.")
        self.device = find_device(self.device)


def main(arguments: list[str] | None = None) -> None:
    """Run the command.

    Raises:
        ValueError: the model is not a language model, a text is not UTF-8, or both texts and a file are given.
    """
    parser = CommandParser(GenerateArguments, __doc__)
    parser.add_argument("text", nargs="*", help="Texts to continue, instead of --input.")
    args, given = parser.parse_args_into_dataclasses(arguments)
    check_texts(given.text, args.input)
    check_output(args.output)
    loaded = load_model(args.model, ("VanillaTransformerForCausalLM",), args.trust_remote_code)
    model = fast_products(loaded).to(args.device)
    tokenizer = load_tokenizer(args.model, args.trust_remote_code)
    prompts = given.text or list(utf8_lines(args.input))
    set_seed(args.seed)
    options = {"do_sample": args.do_sample, "max_new_tokens": args.max_new_tokens, "max_length": None}
    if args.do_sample:
        options |= {"temperature": args.temperature, "top_k": args.top_k, "top_p": args.top_p}
    function = partial(continue_text, model=model, tokenizer=tokenizer, truncation=True, **options)
    limit = longest_input(tokenizer, model.config)
    warn_long_lines(prompts, tokenizer, limit - 1, f"last {max(1, limit // 2)}")
    with open_output(args.output) as stream:
        write_lines(stream, map_by_length(function, prompts, args.batch_size, "generating"))
