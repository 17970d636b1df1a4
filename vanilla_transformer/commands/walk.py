"""Walk through one forward pass of a model, equation by equation, in the terminal or as a web page.

python scripts/walkthrough.py --example today                             # a published worked example
python scripts/walkthrough.py --model FOLDER --text "12 miles"            # any model; of a translator, its encoder
python scripts/walkthrough.py --model FOLDER --text "12 miles" --stack decoder --layer 3 --head 2 --html walk.html
"""

from dataclasses import dataclass, field

from transformers import AutoTokenizer

from vanilla_transformer.command_line import TRUST_REMOTE_CODE, CommandParser
from vanilla_transformer.files import open_output
from vanilla_transformer.inside.recorder import find_stacks
from vanilla_transformer.inside.rendering import page_html, print_walk
from vanilla_transformer.inside.walks import walk_example, walk_sentence
from vanilla_transformer.inside.worked_examples import EXAMPLES
from vanilla_transformer.loading import load_model


@dataclass
class WalkthroughArguments:
    """Options of the command: an example, or a model with its sentence, and what of it is shown.

    Raises:
        ValueError: a model without a sentence; both a model and an example; a sentence without a model.
    """

    example: str | None = field(
        default=None,
        metadata={"help": "Worked example to show; without a model it is today.", "choices": list(EXAMPLES)},
    )
    model: str | None = field(
        default=None, metadata={"help": "Show this model, a folder or a name on the Hub, in the place of an example."}
    )
    text: str | None = field(default=None, metadata={"help": "Sentence for the model; for a translator its source."})
    target: str | None = field(
        default=None, metadata={"help": "What a translator's decoder reads; by default its own translation."}
    )
    stack: str | None = field(default=None, metadata={"help": "encoder or decoder; by default what comes first."})
    layer: int = field(default=1, metadata={"help": "Layer, counted from 1."})
    head: int = field(default=1, metadata={"help": "Attention head, counted from 1."})
    precision: int | None = field(default=None, metadata={"help": "Decimals; by default 3, or as a source prints."})
    html: str | None = field(default=None, metadata={"help": "Write a self-contained web page to this file."})
    trust_remote_code: bool = field(default=False, metadata=TRUST_REMOTE_CODE)

    def __post_init__(self):
        if self.model is not None and not self.text:
            raise ValueError(f"--model {self.model} needs a sentence: give --text.")
        if self.model is not None and self.example is not None:
            raise ValueError(f"--example {self.example} has a model of its own: leave out --model {self.model}.")
        if self.model is None and not (self.text is self.target is self.stack is None):
            raise ValueError("--text, --target and --stack are for a model: give --model too.")


def check_number(name: str, number: int, most: int) -> None:
    """Raise a ValueError unless `number` is one of 1 to `most`."""
    if not 1 <= number <= most:
        raise ValueError(f"There is no {name} {number}: the model has {name}s 1 to {most}.")


def main(arguments: list[str] | None = None) -> None:
    """Run the command.

    Raises:
        ValueError: there is no such layer, head or stack.
    """
    (args,) = CommandParser(WalkthroughArguments, __doc__).parse_args_into_dataclasses(arguments)
    example = EXAMPLES[args.example or "today"]
    model = example.model() if args.model is None else load_model(args.model, trust_remote_code=args.trust_remote_code)
    stacks = find_stacks(model)
    stack = stacks.get(args.stack, next(iter(stacks.values())))
    check_number("layer", args.layer, len(stack.layers))
    check_number("head", args.head, model.config.num_heads)
    if args.model is None:
        walk = walk_example(example, args.layer - 1, args.head - 1)
        walk.note += f" This is head {args.head} of {model.config.num_heads}."
    else:
        tokenizer = AutoTokenizer.from_pretrained(args.model, trust_remote_code=args.trust_remote_code)
        walk = walk_sentence(model, tokenizer, args.text, args.target, args.stack, args.layer - 1, args.head - 1)
        walk.title += f" of {args.model}"
    usual = example.precision if args.model is None else 3
    precision = usual if args.precision is None else args.precision
    if args.html is None:
        print_walk(walk, precision)
    else:
        with open_output(args.html) as stream:
            stream.write(page_html(walk, precision))
