# %% [markdown]
# # An encoder and what it is good for
#
# You will pretrain an encoder on plain text and fine-tune it for a task: recognising the language of a short text. Then come three
# more tasks that differ only in the last layer: scoring a text with a number, tagging words, and answering questions.
#
# **By the end you will be able to** say what pretraining is; train a classifier on your own rows; and choose the head that a
# task needs.

# %%
import os
from pathlib import Path

import torch
from transformers import AutoTokenizer

from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.loading import load_model
from vanilla_transformer.cli import train


QUICK = os.environ.get("QUICK") == "1"  # set by the tests, for a run of a few seconds
runs = Path("runs")
size = {"num_layers": 1 if QUICK else 2, "d_model": 32 if QUICK else 128, "d_ff": 64 if QUICK else 256, "num_heads": 4}
common = {
    "phrases": 1000 if QUICK else 5000,
    "save_strategy": "no",
    "report_to": "none",
    "max_eval_samples": 40 if QUICK else 500,
}


def options(task, **given):
    """Task and options as on a command line."""
    return [task, *(f"--{name}={value}" for name, value in given.items())]


# %% [markdown]
# ## 1. Pretraining: guess the masked word
#
# An encoder sees the whole sentence at once, so it cannot be trained to guess the next word: it would already see it. Instead,
# some tokens are masked, and the encoder has to guess them from the words on both sides. This needs only text, no labels.

# %%
encoder = runs / "notebook-encoder"
if not (encoder / "README.md").exists():
    train.main(
        options(
            "masked_language_modeling",
            **size,
            **common,
            output_dir=encoder,
            vocab_size=500 if QUICK else 3000,
            max_steps=10 if QUICK else 600,
            learning_rate=2e-3,
            warmup_steps=60,
            per_device_train_batch_size=32,
            max_length=64,
        ),
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
# vectors.

# %%
classifier = runs / "notebook-classifier"
if not (classifier / "README.md").exists():
    scores = train.main(
        options(
            "classification",
            **common,
            model_name_or_path=encoder,
            output_dir=classifier,
            max_steps=20 if QUICK else 500,
            learning_rate=1e-3,
            warmup_steps=50,
            per_device_train_batch_size=32,
        ),
    )
    print(scores["test"])

# %% [markdown]
# ### Exercise 1
#
# Write `language(text)`, which returns the label of a text: tokenize it, run the model, take the class with the largest logit,
# and look up its name in `model.config.id2label`.

# %%
model, tokenizer = load_model(classifier), AutoTokenizer.from_pretrained(classifier)


# %% tags=["exercise"]
def language(text):
    """Return the label of a text."""
    return ""  # your code


# %% tags=["solution"]
def language(text):
    """Return the label of a text."""
    with torch.no_grad():
        logits = model(**tokenizer(text, return_tensors="pt")).logits
    return model.config.id2label[int(logits[0].argmax())]


# %% tags=["check"]
assert language("Wednesday, July 4, 2029") in model.config.label2id, "it must be one of the labels"
found = [language(row["text"]) == row["label"] for row in rows["test"].select(range(30))]
assert QUICK or sum(found) > 20, f"only {sum(found)} of 30 are right"

# %% [markdown]
# ## 3. How sure is it?
#
# Logits are not probabilities; the softmax turns them into some.
#
# ### Exercise 2
#
# Write `confidence(text)`, which returns the probability that the model gives to its own answer.


# %% tags=["exercise"]
def confidence(text):
    """Return the probability of the most probable label."""
    return 2.0  # your code


# %% tags=["solution"]
def confidence(text):
    """Return the probability of the most probable label."""
    with torch.no_grad():
        logits = model(**tokenizer(text, return_tensors="pt")).logits
    return logits[0].softmax(dim=-1).max().item()


# %% tags=["check"]
assert 1 / model.config.num_labels <= confidence("12 km") <= 1, "it must be a probability, and the largest of them all"

# %% [markdown]
# ## 4. Other heads
#
# The encoder produces a vector for each token. What a task needs from them decides the head:
#
# | task | head | labels |
# | --- | --- | --- |
# | a class for the text | the mean of the vectors, then one linear layer | a class |
# | a number for the text | the same, with one output | a number |
# | a class for each word | one linear layer on each vector | a class for each word |
# | a span that answers a question | two scores for each token: start and end | where the answer begins and ends |

# %%
from vanilla_transformer import (
    VanillaTransformerEncoderConfig,
    VanillaTransformerForQuestionAnswering,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)


ids = torch.randint(5, 100, (2, 7))  # two sequences of seven tokens
small = {"vocab_size": 100, "d_model": 32, "num_heads": 4, "d_ff": 64, "num_layers": 1}
number = VanillaTransformerForSequenceClassification(VanillaTransformerEncoderConfig(**small, num_labels=1))
tagger = VanillaTransformerForTokenClassification(VanillaTransformerEncoderConfig(**small, num_labels=9))
reader = VanillaTransformerForQuestionAnswering(VanillaTransformerEncoderConfig(**small))
print("a number for each text:", tuple(number(ids).logits.shape))
print("nine classes for each token:", tuple(tagger(ids).logits.shape))
print("start and end for each token:", tuple(reader(ids).start_logits.shape), tuple(reader(ids).end_logits.shape))

# %% [markdown]
# ### A number for a text
#
# The rows are durations such as "3 hours and 5 minutes", and the number is how long they are: the logarithm (to base 10) of the
# seconds. "1 hour" is 3600 seconds, which gives 3.56.

# %%
estimator = runs / "notebook-estimator"
if not (estimator / "README.md").exists():
    scores = train.main(
        options(
            "regression",
            **size,
            **common,
            output_dir=estimator,
            vocab_size=500 if QUICK else 3000,
            max_steps=20 if QUICK else 400,
            learning_rate=1e-3,
            warmup_steps=50,
            per_device_train_batch_size=32,
        ),
    )
    print(scores["test"])

# %% [markdown]
# ### Exercise 3
#
# Write `seconds(text)`: how many seconds long the model thinks that a duration is.

# %%
judge, judge_tokenizer = load_model(estimator), AutoTokenizer.from_pretrained(estimator)


# %% tags=["exercise"]
def seconds(text):
    """Return the length of a duration in seconds."""
    return 0.0  # your code


# %% tags=["solution"]
def seconds(text):
    """Return the length of a duration in seconds."""
    with torch.no_grad():
        (power,) = judge(**judge_tokenizer(text, return_tensors="pt")).logits[0].tolist()
    return 10**power


# %% tags=["check"]
assert seconds("2 hours") > 0, "10 to the power of the logit is positive"
assert QUICK or 0.1 < seconds("2 hours") / 7200 < 10, f"2 hours are 7200 seconds, not {seconds('2 hours'):.0f}"

# %%
for text in ("5 seconds", "40 minutes", "2 hours", "3 days", "2 weeks"):
    print(f"{text}: about {seconds(text):,.0f} seconds")

# %% [markdown]
# It gets the order of magnitude right, and not much more: a root mean squared error of 0.4 in the logarithm is a factor of 2.5.
# Train it for longer, and look again.
#
# ### A class for each word, and a span that answers
#
# The project comes with a trained model for each of these two tasks:

# %%
from vanilla_transformer.pipeline_vanilla_transformer import QuestionAnsweringPipeline
from transformers import pipeline

from vanilla_transformer.loading import shipped_model


text = "The flight to Peru leaves on May 5, 2031 at 9:40 AM and costs 120 euros."
tag = pipeline("token-classification", model=shipped_model("tagger"), aggregation_strategy="first")
for found in tag(text):
    print(f"{found['entity_group']:>8} {found['word'].strip()}")

folder = shipped_model("reader")
answer = QuestionAnsweringPipeline(model=load_model(folder), tokenizer=AutoTokenizer.from_pretrained(folder))
for question in ("Where does the flight go?", "How much does the flight cost?"):
    print(question, answer(question=question, context=text)["answer"])

# %% [markdown]
# You train them in the same way, with `train tagging` and `train question_answering`. [Tasks](../tasks.md) shows what your rows
# have to look like.
