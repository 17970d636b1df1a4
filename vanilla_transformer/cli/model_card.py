"""Write the model card of a training run: a README.md with metadata, results, hyper-parameters and loss curve."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from matplotlib.figure import Figure
from transformers import PreTrainedModel, TrainingArguments
from transformers.trainer_callback import TrainerState

from vanilla_transformer.configuration_vanilla_transformer import OLDEST
from vanilla_transformer.files import markdown_table
from vanilla_transformer.inside.explanations import arrangement
from vanilla_transformer.tasks.task import Scores, Task, scoring_aside
from vanilla_transformer.training.trainer import RecipeTrainerMixin


MODEL_CARD = "README.md"  # written last, so it marks a finished run
BEFORE = "before this training"
# Arguments that affect the result of a run
HYPER_PARAMETERS = (
    "muon muon_momentum embedding_decay schedule learning_rate learning_rate_scale lr_scheduler_type warmup_steps "
    "max_steps num_train_epochs tokens_per_batch tokens_per_batch_of bucketing per_device_train_batch_size "
    "gradient_accumulation_steps adam_beta1 adam_beta2 adam_epsilon weight_decay max_grad_norm "
    "average_checkpoints dropout_start concat_pairs seed bf16 fp16"
).split()

TEMPLATE = """\
---
{{ card_data }}
---

# {{ name }}

A Transformer of the paper [Attention Is All You Need](https://arxiv.org/abs/1706.03762), {{ architecture }} with
{{ parameters }} parameters, trained with the `vanilla-transformer` code in this folder. {{ arrangement }}

## Use

```python
from transformers import {{ imports }}

folder = {{ path }}  # the path of this folder
{{ usage }}
```

The code in this folder needs transformers {{ oldest }} or newer.

## Limits

The model knows only its training data; on other texts its output means little. Nobody has checked its answers: they
can be wrong, and can repeat parts of the data. The code is under the Apache License 2.0. The licence of the weights
depends on the data: add it as `license:` at the top of this page.

## Results

{{ results }}

## Training

Data: {{ data }}

![Loss and validation score by training step](curves.png)

{{ hyper_parameters }}
{% if label_smoothing %}
The config keeps `label_smoothing={{ label_smoothing }}` (section 5.4 of the paper): if you train this model further,
your loss is smoothed too, unless you set `model.config.label_smoothing = 0`.
{% endif %}
"""


@dataclass
class CardFacts:
    """Facts about a run that are stored in neither the model nor the task."""

    dataset: str
    metrics: Scores = field(default_factory=dict)  # split -> metric -> value
    notes: dict[str, str] = field(default_factory=dict)  # details of a metric, such as a sacreBLEU signature
    languages: list[str] | None = None
    baselines: dict[str, Scores] = field(default_factory=dict)  # split -> name of the baseline -> metric -> value
    origin: str | None = None  # the model from which training started

    def begin_from(self, origin: str, task: Task, trainer: RecipeTrainerMixin, rows: Any) -> None:
        """Score a pretrained model on the validation split before training, for comparison."""
        if isinstance(rows, Dataset) and not trainer.is_fsdp_enabled:  # FSDP shards the model when training begins
            self.origin = origin
            with scoring_aside(trainer):
                before, _ = task.score(trainer, {"validation": rows})
            self.baselines = {split: {BEFORE: scores} for split, scores in before.items()}


def plot_curves(log_history: list[dict[str, Any]], metric: str, path: Path) -> None:
    """Plot the training loss, validation loss and validation metric against the step, as far as they were logged.

    For a run shorter than `logging_steps`, only the mean training loss over all steps is known.
    """
    training = "loss" if any("loss" in entry for entry in log_history) else "train_loss"
    labels = {
        training: "training (smoothed labels, if any)",
        "eval_loss": "validation",
        f"eval_{metric}": "validation",
    }
    points = {key: [(entry["step"], entry[key]) for entry in log_history if key in entry] for key in labels}
    panels = {"loss (nats)": [training, "eval_loss"], metric: [f"eval_{metric}"]}
    if metric == "loss" or not points[f"eval_{metric}"]:
        del panels[metric]
    figure = Figure(figsize=(7, 1 + 3 * len(panels)), layout="constrained")  # pyplot would change global state
    for axes, (title, keys) in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels.items(), strict=True):
        for key in filter(points.get, keys):
            marker = "o" if len(points[key]) < 30 else None
            axes.plot(*zip(*points[key], strict=True), label=labels[key], marker=marker, markersize=3)
        axes.set(xlabel="step", ylabel=title)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.set_ylim(min(0, axes.get_ylim()[0]), None)
            axes.legend(loc="center right")  # the curves run along the bottom or the top
    figure.savefig(path, dpi=120)


def options_in_force(arguments: TrainingArguments) -> dict[str, Any]:
    """Return the options that affected the result. Leave out options that are off or overridden by others."""
    values = {name: getattr(arguments, name, None) for name in HYPER_PARAMETERS}
    replaced = {
        *(("learning_rate", "lr_scheduler_type") if values["schedule"] == "paper" else ("learning_rate_scale",)),
        *(("per_device_train_batch_size",) if values["tokens_per_batch"] else ("tokens_per_batch_of", "bucketing")),
        "num_train_epochs" if arguments.max_steps > 0 else "max_steps",
    }
    if not values["muon"]:
        replaced.add("muon_momentum")
    return {
        name: getattr(value, "value", value)  # convert enums to their values
        for name, value in values.items()
        if name not in replaced and (value or (name in ("seed", "dropout_start") and value is not None))
    }


def write_model_card(folder: Path, model: PreTrainedModel, task: Task, state: TrainerState, facts: CardFacts) -> None:
    """Write README.md and curves.png into the model folder `folder`."""
    plot_curves(state.log_history, task.ranked_by, folder / "curves.png")
    results = [
        EvalResult(
            task_type=task.pipeline_tag,
            dataset_type=facts.dataset,
            dataset_name=facts.dataset,
            dataset_split=split,
            metric_type=metric,
            metric_value=round(value, 4),
        )
        for split, metrics in facts.metrics.items()
        for metric, value in metrics.items()
    ]
    rows = [(result.dataset_split, result.metric_type, result.metric_value) for result in results]
    rows += [
        (f"{split}: {name}", metric, round(value, 4))
        for split, baselines in facts.baselines.items()
        for name, scores in baselines.items()
        for metric, value in scores.items()
    ]
    data = ModelCardData(
        language=facts.languages,
        library_name="transformers",
        pipeline_tag=task.pipeline_tag,
        tags=["vanilla-transformer", "attention-is-all-you-need"],
        model_name=folder.resolve().name,
        eval_results=results or None,
    )
    card = ModelCard.from_template(
        data,
        template_str=TEMPLATE,
        name=folder.resolve().name,
        path=json.dumps(folder.resolve().name, ensure_ascii=False),  # a JSON string is a valid Python string
        architecture=type(model).__name__,
        parameters=f"{model.num_parameters():,}",
        arrangement=arrangement(model.config),
        imports="pipeline" if "pipeline(" in task.usage else f"{task.auto_class()}, AutoTokenizer",
        usage=task.usage,
        oldest=OLDEST,
        results=(markdown_table(("split", "metric", "value"), rows) if rows else "It was not scored.")
        + "".join(f"\n\n{name}: `{text}`" for name, text in facts.notes.items()),
        data=f"`{facts.dataset}`",
        # label smoothing only affects losses over a vocabulary
        label_smoothing=getattr(model.config, "label_smoothing", 0) if hasattr(model, "lm_head") else 0,
        hyper_parameters=markdown_table(
            ("option", "value"), [(f"`{name}`", value) for name, value in options_in_force(task.arguments).items()]
        ),
    )
    card.save(folder / MODEL_CARD)
