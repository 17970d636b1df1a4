# %% [markdown]
# # A small language model from scratch
#
# You will train a decoder on a text and let it write. The default text is made of phrases and needs no download; a `.txt` file
# of your own works just as well, and is more fun.
#
# **By the end you will be able to** say what a language model learns; interpret perplexity; and choose between sampling and
# taking the likeliest word.

# %%
import math
import os
from pathlib import Path

import torch
from transformers import AutoTokenizer, set_seed

from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.decoding import continue_text
from vanilla_transformer.loading import load_model
from vanilla_transformer.cli import train


QUICK = os.environ.get("QUICK") == "1"  # set by the tests, for a run of a few seconds
folder = Path("runs/notebook-language-model")

# %% [markdown]
# ## 1. A text
#
# Replace `text` with a file of your own: a book, your notes, a season of subtitles. A hundred kilobytes is not much; a few
# megabytes are better.

# %%
documents = phrasebook("language_modeling", size=1000 if QUICK else 5000)["train"]["text"]
text = Path("notebook-text.txt")
text.write_text("\n\n".join(documents), encoding="utf-8")
print(f"{text.stat().st_size / 1e6:.1f} MB. It begins:\n{documents[0]}")

# %% [markdown]
# ## 2. Train
#
# The model reads a row of 64 tokens and predicts, at each position, the token that comes next. The causal mask keeps it from
# looking ahead, so one row gives 64 predictions at once.

# %%
if not (folder / "README.md").exists():
    options = {
        "train_file": text,
        "sample_by": "paragraph",
        "output_dir": folder,
        "num_layers": 1 if QUICK else 3,
        "d_model": 32 if QUICK else 128,
        "d_ff": 64 if QUICK else 512,
        "num_heads": 4,
        "dropout": 0,
        "label_smoothing": 0,
        "vocab_size": 500 if QUICK else 2000,
        "block_size": 64,
        "per_device_train_batch_size": 16,
        "learning_rate": 1e-3,
        "warmup_steps": 100,
        "max_steps": 10 if QUICK else 800,
        "save_strategy": "no",
        "report_to": "none",
    }
    scores = train.main(["language_modeling", *(f"--{name}={value}" for name, value in options.items())])
    print(scores)

# %% [markdown]
# ## 3. Perplexity
#
# The loss is the mean of $-\ln p$, where $p$ is the probability that the model gave to the token that actually came next. Its
# exponential is the perplexity: choosing among that many equally likely tokens would leave the model just as unsure.
#
# ### Exercise 1
#
# Write `perplexity(sentence)`: tokenize the sentence, call the model with `labels` equal to the `input_ids`, and take the
# exponential of the loss.

# %%
model, tokenizer = load_model(folder), AutoTokenizer.from_pretrained(folder)


# %% tags=["exercise"]
def perplexity(sentence):
    """Return the perplexity of a sentence."""
    return 0.0  # your code


# %% tags=["solution"]
def perplexity(sentence):
    """Return the perplexity of a sentence."""
    batch = tokenizer(sentence, return_tensors="pt")
    with torch.no_grad():
        return math.exp(model(**batch, labels=batch["input_ids"]).loss.item())


# %% tags=["check"]
assert perplexity(documents[0][:200]) >= 1, "a perplexity is at least 1"
assert QUICK or perplexity(documents[0][:200]) < perplexity("Xq zzv qwxk jjp."), "its own text must surprise it less"

# %% [markdown]
# ## 4. Let it write
#
# A token is drawn from the probabilities of the next one, appended to the text, and so on. The temperature divides the logits
# before the softmax: below 1, likely tokens become even likelier.

# %%
prompt = " ".join(documents[0].split()[:4])
for temperature in (0.5, 1.0):
    set_seed(0)
    written = continue_text(
        [prompt], model, tokenizer, do_sample=True, temperature=temperature, max_new_tokens=30, max_length=None
    )
    print(f"temperature {temperature}: {written[0]}\n")

# %% [markdown]
# ### Exercise 2
#
# What does the temperature do to the probabilities? Compute `sharp` and `flat`: the largest probability of the next token after
# `prompt`, at temperatures 0.5 and 2.

# %% tags=["exercise"]
sharp, flat = 0.0, 0.0  # your code

# %% tags=["solution"]
with torch.no_grad():
    logits = model(**tokenizer(prompt, return_tensors="pt")).logits[0, -1]
sharp, flat = ((logits / temperature).softmax(dim=-1).max().item() for temperature in (0.5, 2.0))

# %% tags=["check"]
assert 0 < flat < sharp <= 1, "the lower the temperature, the larger the share of the likeliest token"

# %% [markdown]
# **Go on:** `vanilla-transformer generate --model runs/notebook-language-model < prompts.txt` writes from the command line,
# `vanilla-transformer serve runs/notebook-language-model` answers over HTTP, and
# [the results](../results.md) include a recipe for Tiny Shakespeare.
