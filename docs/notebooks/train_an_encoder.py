# %% [markdown]
# # An encoder and what it is good for
#
# You will pretrain an encoder on plain text, and take it to a task: naming the language of a short text. Then you see three
# more tasks that differ in the last layer only: tagging words, finding an answer, and giving a text a number.
#
# **What you will be able to do at the end:** say what pretraining is; train a classifier on your own rows; and choose the
# head that a task needs.

# %%
import os
from pathlib import Path

import torch
from transformers import AutoTokenizer

from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.loading import load_model
from vanilla_transformer.tasks import CLASSIFICATION, MASKED_LANGUAGE_MODELING
from vanilla_transformer.training.run import run


QUICK = os.environ.get("QUICK") == "1"  # a test only wants to see that it runs
runs = Path("runs")
size = {"num_layers": 1 if QUICK else 2, "d_model": 32 if QUICK else 128, "d_ff": 64 if QUICK else 256, "num_heads": 4}
common = {
    "phrases": 1000 if QUICK else 5000,
    "save_strategy": "no",
    "report_to": "none",
    "max_eval_samples": 40 if QUICK else 500,
}


def options(**given):
    """As on a command line."""
    return [f"--{name}={value}" for name, value in given.items()]


# %% [markdown]
# ## 1. Pretraining: guess the masked word
#
# An encoder sees a whole sentence at once, so it cannot be trained to guess the next word: it would see it. Instead some
# tokens are masked, and it has to name them from what stands on both sides. No labels are needed, only text.

# %%
encoder = runs / "notebook-encoder"
if not (encoder / "README.md").exists():
    run(
        MASKED_LANGUAGE_MODELING,
        options(
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
# The rows have a `text` and a `label`. Yours may be reviews and stars, or messages and departments.

# %%
rows = phrasebook("classification", size=1000)
for row in rows["train"].select(range(4)):
    print(row["label"], "|", row["text"])

# %% [markdown]
# The same layers, with a new last layer: the mean of the output vectors, and one linear layer over it.

# %%
classifier = runs / "notebook-classifier"
if not (classifier / "README.md").exists():
    scores = run(
        CLASSIFICATION,
        options(
            **size,
            **common,
            output_dir=classifier,
            vocab_size=500 if QUICK else 3000,
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
# Write `language(text)`, which gives the label of a text: tokenize it, run the model, take the class with the largest logit, and
# look up its name in `model.config.id2label`.

# %%
model, tokenizer = load_model(classifier), AutoTokenizer.from_pretrained(classifier)


# %% tags=["exercise"]
def language(text):
    """The label of a text."""
    return ""  # your code


# %% tags=["solution"]
def language(text):
    """The label of a text."""
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
# Logits are no probabilities: the softmax makes them some.
#
# ### Exercise 2
#
# Write `confidence(text)`: the probability that the model gives its own answer.


# %% tags=["exercise"]
def confidence(text):
    """The probability of the likeliest label."""
    return 2.0  # your code


# %% tags=["solution"]
def confidence(text):
    """The probability of the likeliest label."""
    with torch.no_grad():
        logits = model(**tokenizer(text, return_tensors="pt")).logits
    return logits[0].softmax(dim=-1).max().item()


# %% tags=["check"]
assert 1 / model.config.num_labels <= confidence("12 km") <= 1, "a probability, and the largest of all"

# %% [markdown]
# ## 4. Other heads
#
# The encoder gives a vector for each token. What a task needs of it decides the head:
#
# | task | head | labels |
# | --- | --- | --- |
# | a class for the text | the mean of the vectors, one linear layer | a class |
# | a number for the text | the same, with one output | a number |
# | a class for each word | one linear layer over each vector | a class for each word |
# | a span that answers | two scores for each token: start and end | where the answer begins and ends |

# %%
from vanilla_transformer import (
    VanillaTransformerEncoderConfig,
    VanillaTransformerForQuestionAnswering,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)


ids = torch.randint(5, 100, (2, 7))  # two texts of seven tokens
small = {"vocab_size": 100, "d_model": 32, "num_heads": 4, "d_ff": 64, "num_layers": 1}
number = VanillaTransformerForSequenceClassification(VanillaTransformerEncoderConfig(**small, num_labels=1))
tagger = VanillaTransformerForTokenClassification(VanillaTransformerEncoderConfig(**small, num_labels=9))
reader = VanillaTransformerForQuestionAnswering(VanillaTransformerEncoderConfig(**small))
print("a number for each text:", tuple(number(ids).logits.shape))
print("nine classes for each token:", tuple(tagger(ids).logits.shape))
print("start and end for each token:", tuple(reader(ids).start_logits.shape), tuple(reader(ids).end_logits.shape))

# %% [markdown]
# Training them is the same command with another script: `train_tagger.py`, `train_question_answering.py`, and
# `train_classifier.py --task regression`. `--model_name_or_path runs/notebook-encoder` starts from the pretrained layers.
# [Tasks](../tasks.md) shows each of them.
