"""Open saved models in the browser: the explorer, and endpoints for programs.

vanilla-transformer demo                            # the models of this project, in checkpoints/
vanilla-transformer demo runs/quickstart-en-es runs/phrasebook-classifier
vanilla-transformer demo --run runs/quickstart-en-es  # draws the curves of a run while it trains
vanilla-transformer demo --static site/explorer  # writes a page in which the models run in the browser

Code in a model folder runs only with --trust_remote_code, and then with your rights.
"""

import os
import sys
from dataclasses import dataclass, field
from io import TextIOWrapper

from vanilla_transformer.app.app import Demo, find_models, load_all
from vanilla_transformer.cli.parser import TRUST_REMOTE_CODE, CommandParser
from vanilla_transformer.files import check_new, shipped_models


@dataclass
class DemoArguments:
    """Options of `demo`.

    Raises:
        ValueError: the port number is invalid.
    """

    model: list[str] = field(default_factory=list, metadata={"help": "The same as FOLDER."})
    run: list[str] = field(
        default_factory=list,
        metadata={"help": "Folders of training runs; the explorer draws their curves while they are in progress."},
    )
    port: int | None = field(
        default=None, metadata={"help": "Port to listen on; by default, the first free one from 7860."}
    )
    static: str | None = field(
        default=None,
        metadata={
            "help": "Write the explorer into this new folder instead of serving it. In its index.html, the models run "
            "in the browser, without a server or a network."
        },
    )
    trust_remote_code: bool = field(default=False, metadata=TRUST_REMOTE_CODE)

    def __post_init__(self):
        if self.port is not None and not 0 < self.port < 2**16:
            raise ValueError(f"--port {self.port} must be from 1 to 65535.")


def main(arguments: list[str] | None = None) -> None:
    """Run the command.

    Raises:
        ValueError, OSError: a model cannot be loaded, or the port is in use.
    """
    parser = CommandParser(DemoArguments, __doc__)
    parser.add_argument(
        "folder", nargs="*", help="Model folders, or names on the Hub; by default those in checkpoints/."
    )
    args, given = parser.parse_args_into_dataclasses(arguments or [])
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # show the address immediately, also in a log file
    sources = given.folder or args.model or os.environ.get("MODEL_ID", "").split() or shipped_models()
    if args.static:
        from vanilla_transformer.app.static_page import write_static_page  # it imports PyTorch

        check_new(args.static)  # check the output folder before loading the models
        write_static_page(load_all(find_models(sources, args.trust_remote_code)), args.static)
        print(f"Open {args.static}/index.html.")
        return
    demo = Demo(find_models(sources, args.trust_remote_code), args.run)
    demo.serve(server_port=args.port, prevent_thread_lock=True)
    load_all(demo.models)  # visitors already see the page, and small models run in it
    demo.api.block_thread()
