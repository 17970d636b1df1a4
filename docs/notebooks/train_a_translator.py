# %% [markdown]
# # Train a translator on your own sentences
#
# You will train an encoder-decoder from scratch: on phrases that need no download, on a file of your own, or on a data set from
# the Hub. With the phrases, it takes about five minutes on two cores.
#
# **By the end you will be able to** bring your own pairs of sentences into the form that the scripts read; train a model; score
# it; and translate with it.

# %%
import json
import os
from pathlib import Path

from transformers import AutoTokenizer

from vanilla_transformer.decoding import translate
from vanilla_transformer.loading import load_model
from vanilla_transformer.cli import train


QUICK = os.environ.get("QUICK") == "1"  # set by the tests, for a run of a few seconds
folder = Path("runs/notebook-translator")

# %% [markdown]
# ## 1. Data: pairs of sentences
#
# Whatever data you have must become rows with a `source` and a `target`. There are three ways:
#
# - **Phrases, without a network:** `phrasebook("translation", "en", "es")` generates dates, amounts, countries and more from
#   Unicode CLDR.
# - **A file of your own:** JSON Lines, one pair per line. A download from [Tatoeba](https://tatoeba.org) has tabs between the two
#   languages; the function that you will write below reads it.
# - **The Hub:** `--dataset bentrevett/multi30k --columns source=en target=de`, for example.

# %%
from vanilla_transformer.data.phrasebook import phrasebook


phrases = phrasebook("translation", "en", "es", size=1000 if QUICK else 20000)
for row in phrases["train"].select(range(5)):
    print(row["source"], "->", row["target"])

# %% [markdown]
# ### Exercise 1
#
# Write `tabs_to_rows(text)`, which turns lines such as `Go.<tab>Ve.<tab>some note` into a list of dictionaries with `source` and
# `target`, and skips lines with fewer than two columns.


# %% tags=["exercise"]
def tabs_to_rows(text):
    """Parse text with tab-separated columns into rows."""
    return []  # your code


# %% tags=["solution"]
def tabs_to_rows(text):
    """Parse text with tab-separated columns into rows."""
    columns = [line.split("\t") for line in text.splitlines()]
    return [{"source": row[0], "target": row[1]} for row in columns if len(row) >= 2]


# %% tags=["check"]
rows = tabs_to_rows("Go.\tVe.\tCC-BY 2.0\n\nHi.\tHola.")
assert rows == [{"source": "Go.", "target": "Ve."}, {"source": "Hi.", "target": "Hola."}], rows

# %% [markdown]
# This writes the rows to files, in the form that the training script reads:

# %%
folder.parent.mkdir(parents=True, exist_ok=True)
for split in ("train", "validation", "test"):
    file = folder.parent / f"notebook-{split}.jsonl"
    lines = (json.dumps(row, ensure_ascii=False) for row in phrases[split])
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
print(file.read_text(encoding="utf-8").splitlines()[0])

# %% [markdown]
# ## 2. Train
#
# The options are those of `train translation`, where you would give them on the command line. A small data set calls
# for a small model: 128 wide, with 3 + 3 layers. The learning rate rises for 400 steps and then falls, as in section 5.3 of the
# paper.

# %%
files = {split: str(folder.parent / f"notebook-{split}.jsonl") for split in ("train", "validation", "test")}
options = {
    "train_file": files["train"],
    "validation_file": files["validation"],
    "test_file": files["test"],
    "output_dir": folder,
    "d_model": 32 if QUICK else 128,
    "d_ff": 64 if QUICK else 512,
    "num_heads": 4,
    "encoder_layers": 1 if QUICK else 3,
    "decoder_layers": 1 if QUICK else 3,
    "dropout": 0,
    "vocab_size": 500 if QUICK else 2000,
    "tokens_per_batch": 700,
    "learning_rate_scale": 0.4,
    "warmup_steps": 400,
    "max_steps": 20 if QUICK else 2500,
    "save_steps": 10 if QUICK else 500,
    "max_eval_samples": 20 if QUICK else 500,
    "report_to": "none",
}
if not (folder / "README.md").exists():  # skip training if the model exists
    scores = train.main(["translation", *(f"--{name}={value}" for name, value in options.items())])
    print(scores)

# %% [markdown]
# ## 3. Translate

# %%
model, tokenizer = load_model(folder), AutoTokenizer.from_pretrained(folder)
for text in ["Wednesday, July 4, 2029", "12 kilometers or 3 miles"]:
    print(text, "->", translate([text], model, tokenizer)[0])

# %% [markdown]
# It knows phrases and nothing else: a sentence about the weather comes out as nonsense. That is due to the data, not the
# architecture.
#
# ### Exercise 2
#
# How good is it? Compute `exact`, the share of the first 50 test phrases whose translation is exactly the one in the data.

# %% tags=["exercise"]
exact = None  # your code

# %% tags=["solution"]
first = phrases["test"].select(range(50))
outputs = translate(list(first["source"]), model, tokenizer)
exact = sum(output == target for output, target in zip(outputs, first["target"], strict=True)) / 50

# %% tags=["check"]
assert exact is not None and 0 <= exact <= 1, "a share is between 0 and 1"
assert QUICK or exact > 0.8, "after 2,500 steps it should be above 80 %"

# %% [markdown]
# ## 4. Share it
#
# The folder has everything: weights, tokenizer, code, and a model card with the scores. `vanilla-transformer push
# runs/notebook-translator USER/NAME` uploads it to the Hub, [Deploy](../deploy.md) shows what else you can do with it, and
# [look inside](look_inside.ipynb) opens it if you set `TRANSLATOR=runs/notebook-translator`.
