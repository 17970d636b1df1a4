# %% [markdown]
# # An encoder and what it is good for
#
# You will pretrain an encoder on plain text and fine-tune it for a task: recognising the language of a short text. Then come three
# more tasks that differ only in the last layer: scoring a text with a number, tagging words, and answering questions. Training
# takes about two minutes in all.
#
# **By the end you will be able to** say what pretraining is; train a classifier on your own rows; write its last layer; and
# choose the head that a task needs.

# %%
import os
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from transformers import AutoTokenizer, pipeline

from vanilla_transformer.cli import train
from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.loading import load_model, shipped_model


QUICK = os.environ.get("QUICK") == "1"  # set by the tests, for a run of a few seconds
runs = Path("runs")
# to learn from scratch in few steps: a small model, another optimizer, and small initial weights
from_scratch = {
    "vocab_size": 500 if QUICK else 3000,
    "num_layers": 1 if QUICK else 2,
    "d_model": 32 if QUICK else 128,
    "d_ff": 64 if QUICK else 256,
    "num_heads": 4,
    "muon": True,
    "muon_momentum": 0.8,
    "init": "small",
    "learning_rate": 5e-3,
    "lr_scheduler_type": "linear",
    "warmup_steps": 60,
}
common = {
    "phrases": 1000 if QUICK else 5000,
    "per_device_train_batch_size": 32,
    "save_strategy": "no",
    "report_to": "none",
    "max_eval_samples": 40 if QUICK else 200,
}


def fit(task, folder, **options):
    """Train a model as on the command line, if it does not exist yet."""
    if not (folder / "README.md").exists():
        given = common | {"output_dir": folder} | options
        if QUICK:
            given |= {"max_steps": 20, "warmup_steps": 10}
        print(
            train.main([task, *(f"--{name}={value}" for name, value in given.items())])
        )


# %% [markdown]
# ## 1. Pretraining: guess the masked word
#
# An encoder sees the whole sentence at once, so it cannot be trained to guess the next word: it would already see it. Instead,
# some tokens are *masked*, which means replaced by `<mask>`. The encoder has to guess them from the words on both sides. This needs
# only text, no labels, and is called *pretraining*.

# %%
encoder = runs / "notebook-encoder"
fit(
    "masked_language_modeling",
    encoder,
    **from_scratch,
    max_steps=400,
    max_length=64,
)

# %% [markdown]
# ## 2. A task: which language is it?
#
# The rows have a `text` and a `label`. Yours could be reviews and stars, or messages and departments.

# %%
rows = phrasebook("classification", size=1000)
for row in rows["train"].select(range(4)):
    print(row["label"], "|", row["text"])

# %% [markdown]
# `model_name_or_path` starts from the pretrained layers. Only the last one is new: a linear layer on the mean of the output
# vectors. Training it for a task is called *fine-tuning*.

# %%
classifier = runs / "notebook-classifier"
options = {"max_steps": 300, "learning_rate": 1e-3, "warmup_steps": 50}
fit("classification", classifier, **{"model_name_or_path": encoder, **options})

# %%
model, tokenizer = load_model(classifier), AutoTokenizer.from_pretrained(classifier)
print(sorted(model.config.label2id))

# %% [markdown]
# ### Exercise 1: a class
#
# Write `language(text)`, which returns the label of a text: tokenize it, run the model, take the class with the largest logit,
# and look up its name in `model.config.id2label`.


# %% tags=["exercise"]
def language(text):
    """Return the label of a text."""
    return ""  # your code


# %% tags=["wrong"]
def language(text):
    """Return the first class for every text."""
    return model.config.id2label[0]


# %% tags=["wrong"]
def language(text):
    """Take the smallest logit."""
    with torch.no_grad():
        logits = model(**tokenizer(text, return_tensors="pt")).logits
    return model.config.id2label[int(logits[0].argmin())]


# %% tags=["solution"]
def language(text):
    """Return the label of a text."""
    with torch.no_grad():
        logits = model(**tokenizer(text, return_tensors="pt")).logits
    return model.config.id2label[int(logits[0].argmax())]


# %% tags=["check"]
judge = pipeline("text-classification", model=model, tokenizer=tokenizer)
for text in rows["test"].select(range(30))["text"]:
    expected = judge(text)[0]["label"]
    assert language(text) == expected, (
        f"{text}: the model says {expected}, you say {language(text)}"
    )

# %%
right = [language(row["text"]) == row["label"] for row in rows["test"]]
print(f"{sum(right)} of {len(right)} test rows are right")

# %% [markdown]
# ## 3. How sure is it?
#
# ### Exercise 2: probabilities
#
# Logits are not probabilities; the softmax turns them into some. Write `chances(text)`, which returns the probabilities of all
# classes, as a tensor in the order of `model.config.id2label`.


# %% tags=["exercise"]
def chances(text):
    """Return the probability of each label."""
    return torch.ones(model.config.num_labels)  # your code


# %% tags=["wrong"]
def chances(text):
    """Return equal probabilities."""
    return torch.ones(model.config.num_labels) / model.config.num_labels


# %% tags=["wrong"]
def chances(text):
    """Return independent probabilities."""
    with torch.no_grad():
        return model(**tokenizer(text, return_tensors="pt")).logits[0].sigmoid()


# %% tags=["solution"]
def chances(text):
    """Return the probability of each label."""
    with torch.no_grad():
        return model(**tokenizer(text, return_tensors="pt")).logits[0].softmax(dim=-1)


# %% tags=["check"]
for text in ("Wednesday, July 4, 2029", "12 km"):
    for found in judge(text, top_k=None):
        given = chances(text)[model.config.label2id[found["label"]]].item()
        assert abs(given - found["score"]) < 1e-4, (
            f"{text}, {found['label']}: {found['score']:.4f}, not {given:.4f}"
        )

# %% [markdown]
# "12 km" is the same in several of these languages. Is the model as unsure as it should be? Often it is sure, and wrong:
# the probabilities of a model are no proof.

# %%
texts = ("Wednesday, July 4, 2029", "12 km")
_, axes = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
for axis, text in zip(axes, texts, strict=True):
    top = chances(text).topk(min(8, model.config.num_labels))
    axis.bar([model.config.id2label[i] for i in top.indices.tolist()], top.values)
    axis.set_ylim(0, 1)
    axis.set_title(text)
plt.show()

# %% [markdown]
# ## 4. The last layer
#
# The encoder produces one vector per token. For a class, the classifier takes the mean of the vectors (without padding), multiplies
# by a matrix with one row per class, and adds one number per class.
#
# ### Exercise 3: a layer
#
# Write `head(states, mask)`, which computes the logits (texts, classes). `states` has the shape (texts, length, d_model).
# `mask` has the shape (texts, length): 1 for a token and 0 for padding. The matrix is `model.classifier.weight`, the
# numbers to add are `model.classifier.bias`.


# %% tags=["exercise"]
def head(states, mask):
    """Return the logits of a batch."""
    return torch.zeros(len(states), 1)  # your code


# %% tags=["wrong"]
def head(states, mask):
    """Take padding into the mean."""
    return states.mean(dim=1) @ model.classifier.weight.T + model.classifier.bias


# %% tags=["wrong"]
def head(states, mask):
    """Take the first token alone."""
    return states[:, 0] @ model.classifier.weight.T + model.classifier.bias


# %% tags=["solution"]
def head(states, mask):
    """Return the logits of a batch."""
    mean = (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
    return mean @ model.classifier.weight.T + model.classifier.bias


# %% tags=["check"]
batch = tokenizer(
    ["12 km", "Wednesday, July 4, 2029 or Thursday"], padding=True, return_tensors="pt"
)
with torch.no_grad():
    states = model.model(**batch).last_hidden_state
    given, expected = head(states, batch["attention_mask"]), model(**batch).logits
assert given.shape == expected.shape, (
    f"the shape must be {tuple(expected.shape)}, not {tuple(given.shape)}"
)
for number, (row, other) in enumerate(zip(given, expected, strict=True), start=1):
    assert torch.allclose(row, other, atol=1e-4), (
        f"text {number}: not the model's logits"
    )

# %% [markdown]
# What a task needs from the vectors decides its head:
#
# | task | head | labels |
# | --- | --- | --- |
# | a class for the text | the mean of the vectors, then one linear layer | a class |
# | a number for the text | the same, with one output | a number |
# | a class for each word | one linear layer on each vector | a class for each word |
# | a span that answers a question | two scores for each token: start and end | where the answer begins and ends |
#
# ## 5. A number for a text
#
# The rows are durations such as "3 hours and 5 minutes", and the number is how long they are: the logarithm (to base 10) of the
# seconds. "1 hour" is 3600 seconds, which gives 3.56.

# %%
estimator = runs / "notebook-estimator"
fit("regression", estimator, **from_scratch, max_steps=300)

# %% [markdown]
# ### Exercise 4: a number
#
# Write `seconds(text)`: how many seconds long the model thinks that a duration is.

# %%
estimate, its_tokenizer = (
    load_model(estimator),
    AutoTokenizer.from_pretrained(estimator),
)


# %% tags=["exercise"]
def seconds(text):
    """Return the length of a duration in seconds."""
    return 1.0  # your code


# %% tags=["wrong"]
def seconds(text):
    """Return the logarithm."""
    with torch.no_grad():
        return estimate(**its_tokenizer(text, return_tensors="pt")).logits.item()


# %% tags=["wrong"]
def seconds(text):
    """Return two hours for every text."""
    return 7200


# %% tags=["solution"]
def seconds(text):
    """Return the length of a duration in seconds."""
    with torch.no_grad():
        return 10 ** estimate(**its_tokenizer(text, return_tensors="pt")).logits.item()


# %% tags=["check"]
for text in ("5 seconds", "2 hours", "3 days"):
    with torch.no_grad():
        power = estimate(**its_tokenizer([text], return_tensors="pt")).logits[0]
    error = torch.log10(torch.tensor([float(seconds(text))])) - power
    assert error.abs() < 1e-3, f"{text}: the model's logarithm is {power.item():.2f}"

# %%
for text in ("5 seconds", "40 minutes", "2 hours", "3 days", "2 weeks"):
    print(f"{text}: about {seconds(text):,.0f} seconds")

# %% [markdown]
# It has learned the order of magnitude, and not much more: so few steps are not enough for arithmetic. Train it for longer, and
# look again.
#
# ## 6. A class for each word, and a span that answers
#
# The project comes with a trained model for each of these two tasks:

# %%
from vanilla_transformer.pipeline_vanilla_transformer import QuestionAnsweringPipeline


text = "The flight to Peru leaves on May 5, 2031 at 9:40 AM and costs 120 euros."
tag = pipeline(
    "token-classification", model=shipped_model("tagger"), aggregation_strategy="first"
)
for found in tag(text):
    print(f"{found['entity_group']:>8} {found['word'].strip()}")

folder = shipped_model("reader")
answer = QuestionAnsweringPipeline(
    model=load_model(folder), tokenizer=AutoTokenizer.from_pretrained(folder)
)
for question in ("Where does the flight go?", "How much does the flight cost?"):
    print(question, answer(question=question, context=text)["answer"])

# %% [markdown]
# You train them in the same way, with `train tagging` and `train question_answering`. [Tasks](../tasks.md) shows what your rows
# have to look like.
