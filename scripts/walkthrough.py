"""Walk through one forward pass of a model, equation by equation, in the terminal or as a web page.

python scripts/walkthrough.py --example today                             # a published worked example
python scripts/walkthrough.py --model FOLDER --text "12 miles"            # any model; of a translator, its encoder
python scripts/walkthrough.py --model FOLDER --text "12 miles" --stack decoder --layer 2 --head 1 --html walk.html
"""

from vanilla_transformer.command_line import run_command
from vanilla_transformer.commands.walk import main


if __name__ == "__main__":
    run_command(main)
