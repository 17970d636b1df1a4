# %% [markdown]
# # A small language model from scratch
#
# You will train a decoder on a text and let it write. The default text is made of phrases and needs no download; any `.txt`
# file of yours will do, and is more fun.
#
# **What you will be able to do at the end:** say what a language model learns; read perplexity; and choose between sampling
# and taking the likeliest word.

# %%
import math
import os
from pathlib import Path

import torch
from transformers import AutoTokenizer, set_seed

from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.decoding import continue_text
from vanilla_transformer.loading import load_model
from vanilla_transformer.tasks import LANGUAGE_MODELING
from vanilla_transformer.training.run import run


QUICK = os.environ.get("QUICK") == "1"  # a test only wants to see that it runs
folder = Path("runs/notebook-language-model")

# %% [markdown]
# ## 1. A text
#
# Put a file of yours in the place of `text`: a book, your notes, a season of subtitles. A hundred kilobytes are little, some
# megabytes are better.

# %%
documents = phrasebook("language_modeling", size=1000 if QUICK else 5000)["train"]["text"]
text = Path("notebook-text.txt")
text.write_text("\n\n".join(documents), encoding="utf-8")
print(f"{text.stat().st_size / 1e6:.1f} MB. It begins:\n{documents[0]}")

# %% [markdown]
# ## 2. Train
#
# The model reads a row of 64 tokens, and at each position guesses the next one. The causal mask sees to it that it does not
# look ahead, so one row gives 64 guesses at once.

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
    scores = run(LANGUAGE_MODELING, [f"--{name}={value}" for name, value in options.items()])
    print(scores)

# %% [markdown]
# ## 3. Perplexity
#
# The loss is the mean of $-\ln p$, where $p$ is the probability that the model gave the token which really came. Its
# exponential, the perplexity, says among how many equally likely tokens the model would be as unsure.
#
# ### Exercise 1
#
# Write `perplexity(sentence)`: tokenize it, call the model with `labels` equal to the `input_ids`, and take the exponential of the
# loss.

# %%
model, tokenizer = load_model(folder), AutoTokenizer.from_pretrained(folder)


# %% tags=["exercise"]
def perplexity(sentence):
    """Among how many tokens the model hesitates."""
    return 0.0  # your code


# %% tags=["solution"]
def perplexity(sentence):
    """Among how many tokens the model hesitates."""
    batch = tokenizer(sentence, return_tensors="pt")
    with torch.no_grad():
        return math.exp(model(**batch, labels=batch["input_ids"]).loss.item())


# %% tags=["check"]
assert perplexity(documents[0][:200]) >= 1, "a perplexity is at least 1"
assert QUICK or perplexity(documents[0][:200]) < perplexity("Xq zzv qwxk jjp."), "its own text must surprise it less"

# %% [markdown]
# ## 4. Let it write
#
# From the probabilities of the next token one is drawn, put behind the text, and so on. The temperature divides the logits
# before the softmax: below 1 the likely become likelier.

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
# What does the temperature do to the probabilities? Compute `sharp` and `flat`, the largest probability of the next token after
# `prompt` at the temperatures 0.5 and 2.

# %% tags=["exercise"]
sharp, flat = 0.0, 0.0  # your code

# %% tags=["solution"]
with torch.no_grad():
    logits = model(**tokenizer(prompt, return_tensors="pt")).logits[0, -1]
sharp, flat = ((logits / temperature).softmax(dim=-1).max().item() for temperature in (0.5, 2.0))

# %% tags=["check"]
assert 0 < flat < sharp <= 1, "the lower the temperature, the more the likeliest token gets"

# %% [markdown]
# **Go on**: `python scripts/generate_text.py --model runs/notebook-language-model < prompts.txt` writes from the command line,
# `python scripts/serve.py runs/notebook-language-model` answers over HTTP, and
# [the results](../results.md) have the recipe for Tiny Shakespeare.
