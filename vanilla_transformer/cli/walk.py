"""Walk through one forward pass of a model, equation by equation, in the terminal or as a web page.

vanilla-transformer walk --example today                             # a published worked example
vanilla-transformer walk --text "12 miles"                           # your sentence, read by checkpoints/en-es
vanilla-transformer walk --text "12 miles" --stack decoder --layer 3 --head 2 --html walk.html
vanilla-transformer walk --ask jugar viajar dormir "I like to travel."
vanilla-transformer walk --numbers mine.json                         # your own X, W_Q, W_K, W_V and W_O
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.cli.parser import TRUST_REMOTE_CODE, CommandParser
from vanilla_transformer.files import check_text, open_output
from vanilla_transformer.inside.recorder import find_stacks
from vanilla_transformer.inside.rendering import Walk, page_html, print_walk
from vanilla_transformer.inside.worked_examples import EXAMPLES, own_example, walk_example


TRANSLATOR = "en-es"  # the included model that reads a sentence by default
DEEPER = """\
To see more, add
  --layer 1                               every equation of layer 1 with its numbers
  --stack decoder --layer 1 --head 2      one stack, and another head
  --html walk.html                        the same as a page to show or print
  --ask WORD WORD ...                     how probable these words are as the next one"""


@dataclass
class WalkthroughArguments:
    """Options of `walk`: an example, or a sentence and a model, and the part to show.

    Raises:
        ValueError: the sentence is empty or missing; two of sentence, example and numbers are given; a text is not
            UTF-8.
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
    layer: int | None = field(
        default=None,
        metadata={
            "help": "Layer to show in full, counted from 1. Without --layer, --head, --stack and --html, a sentence "
            "gets a summary."
        },
    )
    head: int | None = field(default=None, metadata={"help": "Attention head, counted from 1; by default the first."})
    ask: list[str] | None = field(
        default=None,
        metadata={
            "help": "Words whose probabilities to print, at the step where the model may write one of them. Without "
            "--text, the last one is the sentence."
        },
    )
    precision: int | None = field(
        default=None, metadata={"help": "Number of decimals. The default is 3, or that of a published example."}
    )
    html: str | None = field(default=None, metadata={"help": "Write a self-contained web page to this file."})
    trust_remote_code: bool = field(default=False, metadata=TRUST_REMOTE_CODE)

    def __post_init__(self):
        if self.ask and self.text is None:
            *self.ask, self.text = self.ask
        if self.ask == []:
            raise ValueError('--ask needs words, and then a sentence: --ask jugar viajar "I like to travel."')
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

    @property
    def is_summary(self) -> bool:
        """Whether only a summary of a sentence is asked for."""
        return self.layer is self.head is self.stack is self.html is None


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
    if args.text is not None and (args.ask or args.is_summary):
        print(answer(args) if args.ask else summary(args))
        return
    walks, usual = walks_of_example(args) if args.text is None else (walks_of_sentence(args), 3)
    precision = usual if args.precision is None else args.precision
    if args.html is None:
        for walk in walks:
            print_walk(walk, precision)
    else:
        with open_output(args.html) as stream:
            stream.write(page_html(walks, precision))


def index_of(name: str, number: int | None, most: int) -> int:
    """Return the index from 0 of a layer or head; `number` counts from 1, and None means the first.

    Raises:
        ValueError: the number is not from 1 to `most`.
    """
    if number is not None and not 1 <= number <= most:
        raise ValueError(f"There is no {name} {number}: the model has {name}s 1 to {most}.")
    return 0 if number is None else number - 1


def walks_of_example(args: WalkthroughArguments) -> tuple[list[Walk], int]:
    """Return the walkthrough of an example, and the number of decimals to print."""
    example = EXAMPLES[args.example or "today"] if args.numbers is None else own_example(args.numbers)
    layer = index_of("layer", args.layer, 1)
    head = index_of("head", args.head, example.model().config.num_heads)
    return [walk_example(example, layer, head)], example.precision


def load(args: WalkthroughArguments) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, str]:
    """Return the model that reads the sentence, its tokenizer and its name.

    Raises:
        FileNotFoundError: no model is given, and the default model can be neither found nor downloaded.
    """
    # Loading a model imports much more than a worked example needs.
    from vanilla_transformer.loading import load_model, load_tokenizer, shipped_model

    source = args.model or shipped_model(TRANSLATOR)
    model = load_model(source, trust_remote_code=args.trust_remote_code)
    return model, load_tokenizer(source, args.trust_remote_code), Path(source).name


def walks_of_sentence(args: WalkthroughArguments) -> list[Walk]:
    """Return the walkthroughs of the stacks to show.

    Raises:
        ValueError: there is no such layer, head or stack.
    """
    from vanilla_transformer.inside.walks import walk_sentence

    model, tokenizer, name = load(args)
    stacks, text = find_stacks(model), cast(str, args.text)
    if args.stack not in (None, *stacks):
        raise ValueError(f"There is no stack {args.stack!r}: the model has {' and '.join(stacks)}.")
    shown = {args.stack: stacks[args.stack]} if args.stack else stacks
    head = index_of("head", args.head, model.config.num_heads)
    layers = {stack: index_of("layer", args.layer, len(shown[stack].layers)) for stack in shown}
    walks = [walk_sentence(model, tokenizer, text, args.target, stack, layers[stack], head) for stack in shown]
    for walk in walks:
        walk.title += f" of {name}"
    return walks


def summary(args: WalkthroughArguments) -> str:
    """Return a summary of the sentence in the model, and the options that show more."""
    from vanilla_transformer.inside.walks import summarize

    model, tokenizer, name = load(args)
    return f"{args.text!r} in {name}\n{summarize(model, tokenizer, cast(str, args.text), args.target)}\n\n{DEEPER}"


def answer(args: WalkthroughArguments) -> str:
    """Return the probabilities of the words to ask for, the most probable one first."""
    from vanilla_transformer.inside.walks import ask

    model, tokenizer, name = load(args)
    words = cast(list[str], args.ask)
    begun, found = ask(model, tokenizer, cast(str, args.text), words, args.target)
    width = max(map(len, words))
    ranked = sorted(found.items(), key=lambda item: -item[1])
    lines = [f"{word:{width}}  {p:7.2%}  {'█' * round(40 * p)}".rstrip() for word, p in ranked]
    return "\n".join([f"{args.text!r} in {name}, after {begun!r}:", *lines])
