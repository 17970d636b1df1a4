"""Train a small translator on the built-in phrasebook, score it, save it, load it again, and use it.

vanilla-transformer quickstart                                            # English to Spanish
vanilla-transformer quickstart --source_locale hi --target_locale en      # Hindi to English
"""

from dataclasses import dataclass, field
from pathlib import Path

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from vanilla_transformer.cli.model_card import MODEL_CARD
from vanilla_transformer.cli.parser import CommandParser
from vanilla_transformer.cli.train import run
from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.decoding import translate
from vanilla_transformer.tasks.translation import TranslationTask


# The wheel contains a copy of recipes/quickstart.yaml.
RECIPES = (Path(__file__).with_name("quickstart.yaml"), Path(__file__).parents[2] / "recipes" / "quickstart.yaml")
SAMPLES = 10


@dataclass
class QuickstartArguments:
    source_locale: str = field(default="en", metadata={"help": "Language to translate from, a CLDR locale."})
    target_locale: str = field(default="es", metadata={"help": "Language to translate to, a CLDR locale."})
    output_dir: str | None = field(
        default=None,
        metadata={"help": "Folder for the model; by default runs/quickstart-SOURCE-TARGET."},
    )


def main(arguments: list[str] | None = None) -> None:
    (args,) = CommandParser(QuickstartArguments, __doc__).parse_args_into_dataclasses(arguments)
    locales = (args.source_locale, args.target_locale)
    folder = Path(args.output_dir or f"runs/quickstart-{'-'.join(locales)}")
    if (folder / MODEL_CARD).is_file():
        print(f"{folder} already holds a trained model. Remove the folder to train it again.\n")
    else:
        print(f"Training a translator from {locales[0]} to {locales[1]} on the CLDR phrasebook.", flush=True)
        options = ["--source_locale", locales[0], "--target_locale", locales[1], "--output_dir", str(folder)]
        recipe = next(path for path in RECIPES if path.is_file())
        # continue an interrupted run
        run(TranslationTask, [str(recipe), *options, "--resume_from_checkpoint", "true"])

    # Load the model like a user who has not imported our classes.
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True).eval()
    rows = phrasebook("translation", *locales)["test"].select(range(SAMPLES))
    print(f"\nTranslations by {folder} of phrases that were not in its training data:")
    outputs = translate(list(rows["source"]), model, tokenizer)
    for source, target, output in zip(rows["source"], rows["target"], outputs, strict=True):
        verdict = "right" if output == target else f"should be: {target}"
        print(f"  {source}  ->  {output}  ({verdict})")
    print(f"\nThe model folder is {folder}: weights, tokenizer, code and model card (README.md).")
    print(f"Translate your own lines: echo 'May 5, 2031' | vanilla-transformer translate --model {folder}")
    print(f"Open the demo on it:      vanilla-transformer demo {folder}")
