"""Turn the folder of a finished run into a checkpoint to ship: bfloat16 weights, no code, scores, a model card."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase, pipeline
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_NAME

from vanilla_transformer.cli import evaluate
from vanilla_transformer.cli.model_card import MODEL_CARD
from vanilla_transformer.configuration_vanilla_transformer import OLDEST
from vanilla_transformer.decoding import translate
from vanilla_transformer.files import markdown_table
from vanilla_transformer.inside.explanations import arrangement
from vanilla_transformer.loading import load_model
from vanilla_transformer.pipeline_vanilla_transformer import QuestionAnsweringPipeline
from vanilla_transformer.tasks import find_task


# Files to copy from the run if they exist, in addition to the weights and the card.
COPIED = (CONFIG_NAME, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")

PRETRAINING = "pretraining"  # folder beside a recipe with the recipe, if any, of the model that it begins from

Scores = dict[str, dict[str, float]]  # data set -> metric -> score

TEMPLATE = """\
---
{{ card_data }}
---

{{ description }}

## Use

The code is at the root of the repository, not in this folder. `repository` is the path of a clone, or the repository's
name on the Hub.

```python
{{ usage }}
```

With the project installed, `from_pretrained("checkpoints/{{ name }}")` works without remote code, after
`import vanilla_transformer`. The code needs transformers {{ oldest }} or newer.

## Train it further

```bash
{{ further }}
```

This command plans a training on your rows. It trains in float32, and says so if the model became worse on rows that it
held out.

## Examples

{{ examples }}

## Scores

{{ scores }}

The scores are from one training run, with seed {{ seed }}, and were computed from the weights in this folder,
which are stored in bfloat16.

## Training

{{ parameters }} parameters. {{ arrangement }}

`python scripts/make_checkpoints.py --names {{ name }}` trains it with this recipe, and
generates the data that the recipe names:

```yaml
{{ recipe }}
```

{{ licence }}
"""
USAGE = """\
from transformers import {auto_class}, AutoTokenizer

repository, folder = ".", "checkpoints/{name}"
tokenizer = AutoTokenizer.from_pretrained(repository, subfolder=folder, trust_remote_code=True)
model = {auto_class}.from_pretrained(repository, subfolder=folder, trust_remote_code=True)"""

FURTHER = "vanilla-transformer train rows.jsonl --model_name_or_path checkpoints/{name}"


def answers(tag: str, model: Any, tokenizer: PreTrainedTokenizerBase, inputs: list[dict[str, str]]) -> Iterator[str]:
    """Yield the model's output for each input as one line. Inputs have the format of widget examples on the Hub."""
    parts = {"model": model, "tokenizer": tokenizer}
    if tag == "translation":
        yield from translate([given["text"] for given in inputs], model, tokenizer)
    elif tag == "question-answering":
        reader = QuestionAnsweringPipeline(**parts)
        for given in inputs:
            yield reader(question=given["text"], context=given["context"])["answer"] or "no answer"
    elif tag == "text-generation":
        generate = pipeline(tag, **parts)
        for given in inputs:
            yield generate(given["text"], do_sample=False, max_new_tokens=20)[0]["generated_text"].split("\n")[0]
    elif tag == "token-classification":
        # Models are trained to predict the tag of a word at its first token.
        tagger = pipeline(tag, **parts, aggregation_strategy="first")
        for given in inputs:
            found = [f"{span['word'].strip()}: {span['entity_group']}" for span in tagger(given["text"])]
            yield ", ".join(found) or "nothing"
    else:
        named = pipeline(tag, **parts)
        key = "token_str" if tag == "fill-mask" else "label"
        for given in inputs:
            yield ", ".join(f"{found[key].strip()} ({found['score']:.0%})" for found in named(given["text"], top_k=3))


def score(folder: Path, data: Path) -> Scores:
    """Return the scores of a model on each test file in `data`, computed in float32."""
    options = ["--model", str(folder), "--bf16", "false", "--disable_tqdm", "true"]
    return {
        file.stem: evaluate.main([*options, "--test_file", str(file)])["test"]
        for file in sorted(data.glob("test*.jsonl"))
    }


def copy_in_bfloat16(run: Path, folder: Path) -> None:
    """Write the weights of `run` to `folder` in bfloat16; the config still specifies float32."""
    weights = load_file(run / SAFE_WEIGHTS_NAME)
    halves = {name: weight.bfloat16() if weight.dtype == torch.float32 else weight for name, weight in weights.items()}
    save_file(halves, folder / SAFE_WEIGHTS_NAME, metadata={"format": "pt"})
    (folder / SAFE_WEIGHTS_NAME).chmod(0o644)


def check_recipe(run: Path, recipe: dict[str, Any]) -> None:
    """Raise a ValueError if the config of the trained model contradicts the recipe."""
    config = AutoConfig.from_pretrained(run).to_dict()
    for name, value in recipe.items():
        # The trained tokenizer may have fewer tokens than the recipe allows.
        if name in config and name != "vocab_size" and config[name] != value:
            raise ValueError(
                f"{run} was trained with {name}={config[name]}, but its recipe has {value}: remove the folder "
                "to train again, or correct the recipe."
            )


def package(name: str, run: Path, recipe: Path, data: Path, folder: Path) -> Scores:
    """Create the checkpoint `folder` from a finished run, replace an earlier checkpoint, and return its scores.

    Args:
        run: output folder of the run.
        recipe: YAML file of the run. The Markdown file of the same name describes the model for the card.
        data: folder with the test data, test*.jsonl.

    Raises:
        FileNotFoundError: the run has not finished.
        ValueError: the model was trained with another recipe.
    """
    if not (run / MODEL_CARD).is_file():
        raise FileNotFoundError(f"{run} contains no finished run: it has no {MODEL_CARD}.")
    options = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    check_recipe(run, options)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in COPIED:
        if (run / file).is_file():
            shutil.copy(run / file, folder / file)
    copy_in_bfloat16(run, folder)
    scores = score(folder, data)
    write_card(name, folder, recipe, scores)
    return scores


def write_card(name: str, folder: Path, recipe: Path, scores: Scores) -> None:
    """Write the model card (README.md) of a checkpoint from its Markdown description and its scores."""
    by_hand = ModelCard.load(recipe.with_suffix(".md"))
    facts: dict[str, Any] = by_hand.data.to_dict()
    tests: dict[str, str] = facts.pop("tests")  # name of a test file -> description of its data
    description, _, licence = by_hand.text.partition("## Licence")
    options = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    task = find_task(options["task"])
    tag = task.pipeline_tag
    model, tokenizer = load_model(folder, (task.model_class.__name__,)), AutoTokenizer.from_pretrained(folder)
    shown = zip(facts["widget"], answers(tag, model, tokenizer, facts["widget"]), strict=True)
    rows = [
        (tests[test], metric, round(value, 3)) for test, values in scores.items() for metric, value in values.items()
    ]
    data = ModelCardData(
        **facts,
        library_name="transformers",
        pipeline_tag=tag,
        tags=["vanilla-transformer", "attention-is-all-you-need"],
        model_name=name,
        eval_results=[
            EvalResult(
                task_type=tag,
                dataset_type=tests[test].split(",")[0].lower(),
                dataset_name=tests[test],
                dataset_split="test",
                metric_type=metric,
                metric_value=round(value, 3),
            )
            for test, values in scores.items()
            for metric, value in values.items()
        ],
    )
    card = ModelCard.from_template(
        data,
        template_str=TEMPLATE,
        name=name,
        description=description.strip(),
        usage=USAGE.format(name=name, auto_class=task.auto_class()),
        oldest=OLDEST,
        further=FURTHER.format(name=name),
        examples=markdown_table(
            ("given", "answer"),
            [(" ".join(reversed(given.values())).replace("<", "&lt;"), answer) for given, answer in shown],
        ),
        scores=markdown_table(("data", "metric", "value"), rows),
        seed=options["seed"],
        arrangement=arrangement(model.config),
        parameters=f"{model.num_parameters():,}",
        recipe="\n---\n".join(
            path.read_text(encoding="utf-8").strip()
            for path in (recipe.parent / PRETRAINING / recipe.name, recipe)
            if path.is_file()
        ),
        licence=f"## Licence\n\n{licence.strip()}\n",
    )
    card.save(folder / "README.md")
