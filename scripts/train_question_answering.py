"""Train a reader that finds the answer to a question in a text (extractive question answering).

python scripts/train_question_answering.py --dataset squad --output_dir runs/reader
"""

from functools import partial

from vanilla_transformer.cli.parser import run_command
from vanilla_transformer.cli.train import run
from vanilla_transformer.tasks.question_answering import QuestionAnsweringTask


main = partial(run, QuestionAnsweringTask)

if __name__ == "__main__":
    run_command(main)
