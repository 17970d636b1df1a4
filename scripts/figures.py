"""Draw the figures of the docs from the real code, each as PNG and SVG, for light and dark pages.

python scripts/figures.py                                         # all, into docs/figures, in about a minute
python scripts/figures.py masks complexity --output lecture       # some of them, into another folder
"""

from functools import partial
from pathlib import Path

from plots.attention import attention_mask, bank_and_loan, masks, softmax_jacobian
from plots.complexity import QUICK, complexity
from plots.diagrams import attention, encoder_decoder, families
from plots.drawings import beam_search, bottleneck, cut_into_heads, norm_placement
from plots.embeddings import embedding_map
from plots.positions import permutation_equivariance, position_dot_products, position_shift, sinusoid_heat_map
from plots.style import save
from plots.training import label_smoothing, learning_rate_schedule
from vanilla_transformer.cli.errors import run_command
from vanilla_transformer.cli.parser import CommandParser


FIGURES = {
    function.__name__.replace("_", "-"): function
    for function in (
        encoder_decoder, families, attention, softmax_jacobian, attention_mask, masks, embedding_map,
        sinusoid_heat_map, position_shift, position_dot_products, permutation_equivariance, complexity,
        learning_rate_schedule, label_smoothing, bottleneck, cut_into_heads, bank_and_loan, norm_placement,
        beam_search,
    )
}  # fmt: skip
FOLDER = Path(__file__).parent.parent / "docs" / "figures"


def main(arguments: list[str] | None = None) -> None:
    parser = CommandParser(description=__doc__)
    known = ", ".join(FIGURES)
    parser.add_argument("names", nargs="*", metavar="name", help=f"Figures to draw, by default all: {known}.")
    parser.add_argument("--output", type=Path, default=FOLDER, help="Folder for the figures, by default docs/figures.")
    parser.add_argument("--quick", action="store_true", help="Measure only small sizes, as a quick check.")
    args = parser.parse_args(arguments)
    unknown = [name for name in args.names if name not in FIGURES]
    if unknown:
        parser.error(f"there is no figure {unknown[0]!r}; choose from {known}.")

    figures = FIGURES | ({"complexity": partial(complexity, QUICK)} if args.quick else {})
    args.output.mkdir(parents=True, exist_ok=True)
    for name in args.names or FIGURES:
        for path in save(name, figures[name], args.output):
            print(path)


if __name__ == "__main__":
    run_command(main)
