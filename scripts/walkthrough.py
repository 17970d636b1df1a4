"""Walk through one forward pass of a model, equation by equation, in the terminal or as a web page.

python scripts/walkthrough.py --example today                             # a published worked example
python scripts/walkthrough.py --model FOLDER --text "12 miles"            # any model; of a translator, its encoder
python scripts/walkthrough.py --model FOLDER --text "12 miles" --stack decoder --layer 2 --head 1 --html walk.html
"""

from dataclasses import dataclass, field

from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, HfArgumentParser, PreTrainedModel, PreTrainedTokenizerBase

from decoding import EXTRA_TOKENS
from recorder import find_stacks, record
from step_rendering import Walk, page_html, print_walk
from text_io import open_output
from worked_examples import EXAMPLES, WorkedExample


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


def walk_example(example: WorkedExample, layer: int, head: int) -> Walk:
    """The steps that the source of a worked example explains."""
    steps = record(example.model(), example.inputs(), layer, head)
    shown = [step for step in steps if (step.part, step.name) in example.steps]
    printed = example.printed if head == 0 else {}
    return Walk(example.title, example.note, shown, example.words(), [], printed)


def load(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model of this project under its own head, and its tokenizer.

    Raises:
        ValueError: it is not a model of this project.
    """
    import vanilla_transformer  # here, since it registers itself: the demo, which shares this file, has remote code

    architectures = AutoConfig.from_pretrained(name).architectures or ["none"]
    if architectures[0] not in vanilla_transformer.__all__:
        raise ValueError(f"{name} holds a model of class {architectures[0]}; only this project's can be shown.")
    model = getattr(vanilla_transformer, architectures[0]).from_pretrained(name).eval()
    return model, AutoTokenizer.from_pretrained(name)


def words_of(ids: Tensor, tokenizer: PreTrainedTokenizerBase) -> list[list[str]]:
    visible = str.maketrans({" ": "␣", "\n": "⏎"})
    return [[tokenizer.decode([token]).translate(visible) for token in row] for row in ids.tolist()]


def walk_sentence(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    target: str | None = None,
    stack: str | None = None,
    layer: int = 0,
    head: int = 0,
) -> Walk:
    """The steps of one layer of a model on a sentence; arguments as on the command line."""
    inputs = dict(tokenizer(text, return_tensors="pt"))
    stack = stack or next(iter(find_stacks(model)))
    source_words = words = words_of(inputs["input_ids"], tokenizer)
    if model.config.is_encoder_decoder and stack == "decoder":
        if target is None:
            output = model.generate(**inputs, max_length=inputs["input_ids"].shape[1] + EXTRA_TOKENS)
            inputs["decoder_input_ids"] = output[:, :-1]  # the last token is not read
        else:
            labels = tokenizer(text_target=target, return_tensors="pt")["input_ids"]
            inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
        words = words_of(inputs["decoder_input_ids"], tokenizer)
    steps = record(model, inputs, layer, head, stack)
    return Walk(
        f"{text!r} in the {stack}", f"Layer {layer}, head {head}, counted from 0.", steps, words, source_words, {}
    )


def main(arguments: list[str] | None = None) -> None:
    (args,) = HfArgumentParser(WalkthroughArguments).parse_args_into_dataclasses(arguments)
    if args.model is None:
        walk = walk_example(EXAMPLES[args.example], args.layer, args.head)
        precision = EXAMPLES[args.example].precision if args.precision is None else args.precision
    else:
        walk = walk_sentence(*load(args.model), args.text, args.target, args.stack, args.layer, args.head)
        walk.title += f" of {args.model}"
        precision = 3 if args.precision is None else args.precision
    if args.html is None:
        print_walk(walk, precision)
    else:
        with open_output(args.html) as stream:
            stream.write(page_html(walk, precision))


if __name__ == "__main__":
    main()
