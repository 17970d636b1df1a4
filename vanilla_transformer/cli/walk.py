"""Walk through one forward pass of a model, equation by equation, in the terminal or as a web page.

vanilla-transformer walk --example today                             # a published worked example
vanilla-transformer walk --text "12 miles"                           # your sentence, read by checkpoints/en-es
vanilla-transformer walk --model FOLDER --text "12 miles" --stack decoder --layer 3 --head 2 --html walk.html
vanilla-transformer walk --numbers mine.json                         # your own X, W_Q, W_K, W_V and W_O
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from vanilla_transformer.cli.parser import TRUST_REMOTE_CODE, CommandParser
from vanilla_transformer.files import check_text, open_output
from vanilla_transformer.inside.recorder import find_stacks
from vanilla_transformer.inside.rendering import Walk, page_html, print_walk
from vanilla_transformer.inside.walks import walk_example, walk_sentence
from vanilla_transformer.inside.worked_examples import EXAMPLES, own_example
from vanilla_transformer.loading import load_model, load_tokenizer, shipped_model


TRANSLATOR = "en-es"  # names of the included models that walkthroughs use by default


@dataclass
class WalkthroughArguments:
    """Options of `walk`: an example, or a sentence and a model, and the part to show.

    Raises:
        ValueError: the sentence is empty or missing; two of sentence, example and numbers are given; a text is not
            UTF-8.
        FileNotFoundError: no model is given, and the default model can be neither found nor downloaded.
    """

    example: str | None = field(
        default=None,
        metadata={"help": 'Worked example to show; "today" if no other option is given.', "choices": list(EXAMPLES)},
    )
    numbers: str | None = field(
        default=None,
        metadata={
            "help": "Show attention with your own numbers: a JSON file with X, W_Q, W_K, W_V and W_O (lists of "
            "rows), and optionally words and heads."
        },
    )
    text: str | None = field(default=None, metadata={"help": "Your sentence; for a translator, the source."})
    model: str | None = field(
        default=None,
        metadata={"help": f"Model folder, or name on the Hub; by default checkpoints/{TRANSLATOR}."},
    )
    target: str | None = field(
        default=None, metadata={"help": "Input of a translator's decoder; by default, its own translation."}
    )
    stack: str | None = field(
        default=None, metadata={"help": "Stack to show, encoder or decoder; by default all of them."}
    )
    layer: int = field(default=1, metadata={"help": "Layer, counted from 1."})
    head: int = field(default=1, metadata={"help": "Attention head, counted from 1."})
    precision: int | None = field(
        default=None, metadata={"help": "Number of decimals. The default is 3, or that of a published example."}
    )
    html: str | None = field(default=None, metadata={"help": "Write a self-contained web page to this file."})
    trust_remote_code: bool = field(default=False, metadata=TRUST_REMOTE_CODE)

    def __post_init__(self):
        if self.text == "":
            raise ValueError("--text is empty: give a sentence.")
        given = [f"--{name}" for name in ("text", "example", "numbers") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other: give only one of them.")
        for name in ("model", "target", "stack"):
            if not self.text and (value := getattr(self, name)) is not None:
                raise ValueError(f"--{name} {value} needs a sentence: give --text.")
        for text in filter(None, (self.text, self.target)):
            check_text(text)
        if self.text and self.model is None:
            self.model = shipped_model(TRANSLATOR)


def check_number(name: str, number: int, most: int) -> None:
    """Raise a ValueError unless `number` is from 1 to `most`."""
    if not 1 <= number <= most:
        raise ValueError(f"There is no {name} {number}: the model has {name}s 1 to {most}.")


def main(arguments: list[str] | None = None) -> None:
    """Run the command.

    Raises:
        ValueError: there is no such layer, head or stack.
    """
    (args,) = CommandParser(WalkthroughArguments, __doc__).parse_args_into_dataclasses(arguments)
    walks, usual = walks_of_example(args) if args.model is None else walks_of_sentence(args)
    precision = usual if args.precision is None else args.precision
    if args.html is None:
        for walk in walks:
            print_walk(walk, precision)
    else:
        with open_output(args.html) as stream:
            stream.write(page_html(walks, precision))


def walks_of_example(args: WalkthroughArguments) -> tuple[list[Walk], int]:
    """Return the walkthrough of an example, and the number of decimals to print."""
    example = EXAMPLES[args.example or "today"] if args.numbers is None else own_example(args.numbers)
    heads = example.model().config.num_heads
    check_number("layer", args.layer, 1)
    check_number("head", args.head, heads)
    walk = walk_example(example, 0, args.head - 1)
    walk.note += f" This is head {args.head} of {heads}."
    return [walk], example.precision


def walks_of_sentence(args: WalkthroughArguments) -> tuple[list[Walk], int]:
    """Return the walkthroughs of the stacks to show, and the number of decimals to print.

    Raises:
        ValueError: there is no such layer, head or stack.
    """
    source, text = cast(str, args.model), cast(str, args.text)
    model = load_model(source, trust_remote_code=args.trust_remote_code)
    tokenizer = load_tokenizer(source, args.trust_remote_code)
    stacks = find_stacks(model)
    names = list(stacks) if args.stack is None else [args.stack]
    for name in names:
        if name in stacks:  # the recorder rejects other names
            check_number("layer", args.layer, len(stacks[name].layers))
    check_number("head", args.head, model.config.num_heads)
    walks = [walk_sentence(model, tokenizer, text, args.target, name, args.layer - 1, args.head - 1) for name in names]
    for walk in walks:
        walk.title += f" of {Path(source).name}"
    return walks, 3
