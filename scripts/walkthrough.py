"""Walk through one forward pass of a model, equation by equation, in the terminal or as a web page.

python scripts/walkthrough.py --example today                             # a published worked example
python scripts/walkthrough.py --text "12 miles"                           # your sentence, read by checkpoints/en-es
python scripts/walkthrough.py --model FOLDER --text "12 miles" --stack decoder --layer 3 --head 2 --html walk.html
python scripts/walkthrough.py --numbers mine.json                         # your own X, W_Q, W_K, W_V and W_O
"""

from vanilla_transformer.cli.parser import run_command
from vanilla_transformer.cli.walk import main


if __name__ == "__main__":
    run_command(main)
