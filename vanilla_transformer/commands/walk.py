"""Walk through one forward pass of a model, equation by equation, in the terminal or as a web page.

python scripts/walkthrough.py --example today                             # a published worked example
python scripts/walkthrough.py --model FOLDER --text "12 miles"            # any model; of a translator, its encoder
python scripts/walkthrough.py --model FOLDER --text "12 miles" --stack decoder --layer 2 --head 1 --html walk.html
"""

from dataclasses import dataclass, field

from transformers import AutoTokenizer

from vanilla_transformer.command_line import CommandParser
from vanilla_transformer.files import open_output
from vanilla_transformer.inside.rendering import page_html, print_walk
from vanilla_transformer.inside.walks import walk_example, walk_sentence
from vanilla_transformer.inside.worked_examples import EXAMPLES
from vanilla_transformer.loading import load_model


@dataclass
class WalkthroughArguments:
    example: str = field(default="today", metadata={"help": "Worked example to show.", "choices": list(EXAMPLES)})
    model: str | None = field(
        default=None, metadata={"help": "Show this model, a folder or a name on the Hub, in the place of an example."}
    )
    text: str | None = field(default=None, metadata={"help": "Sentence for the model; for a translator its source."})
    target: str | None = field(
        default=None, metadata={"help": "What a translator's decoder reads; by default its own translation."}
    )
    stack: str | None = field(default=None, metadata={"help": "encoder or decoder; by default what comes first."})
    layer: int = field(default=0, metadata={"help": "Layer, counted from 0."})
    head: int = field(default=0, metadata={"help": "Attention head, counted from 0."})
    precision: int | None = field(default=None, metadata={"help": "Decimals; by default 3, or as a source prints."})
    html: str | None = field(default=None, metadata={"help": "Write a self-contained web page to this file."})

    def __post_init__(self):
        if self.model is not None and not self.text:
            raise ValueError(f"--model {self.model} needs a sentence: give --text.")


def main(arguments: list[str] | None = None) -> None:
    (args,) = CommandParser(WalkthroughArguments, __doc__).parse_args_into_dataclasses(arguments)
    if args.model is None:
        walk = walk_example(EXAMPLES[args.example], args.layer, args.head)
        precision = EXAMPLES[args.example].precision if args.precision is None else args.precision
    else:
        model, tokenizer = load_model(args.model), AutoTokenizer.from_pretrained(args.model)
        walk = walk_sentence(model, tokenizer, args.text, args.target, args.stack, args.layer, args.head)
        walk.title += f" of {args.model}"
        precision = 3 if args.precision is None else args.precision
    if args.html is None:
        print_walk(walk, precision)
    else:
        with open_output(args.html) as stream:
            stream.write(page_html(walk, precision))
