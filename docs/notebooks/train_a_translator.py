# %% [markdown]
# # Train a translator on your own sentences
#
# You will train an encoder-decoder from scratch: on phrases that need no download, on a file of your own, or on a data set from
# the Hub. With the phrases, training takes about one minute on two cores.
#
# **By the end you will be able to** bring your own pairs of sentences into the form that `train` reads; train a model and score
# it; do a training step yourself; and explain greedy search and beam search.

# %%
import copy
import json
import os
from pathlib import Path

import torch
from IPython.display import Image
from transformers import AutoTokenizer

from vanilla_transformer.cli import train
from vanilla_transformer.cli.quickstart import RECIPES
from vanilla_transformer.decoding import translate
from vanilla_transformer.loading import load_model


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
# ### Exercise 1: rows
#
# Write `tabs_to_rows(text)`, which turns lines such as `Go.<tab>Ve.<tab>some note` into a list of dictionaries with `source` and
# `target`, and skips lines with fewer than two columns.


# %% tags=["exercise"]
def tabs_to_rows(text):
    """Parse text with tab-separated columns into rows."""
    return []  # your code


# %% tags=["wrong"]
def tabs_to_rows(text):
    """Split at spaces too."""
    columns = [line.split() for line in text.splitlines()]
    return [{"source": row[0], "target": row[1]} for row in columns if len(row) >= 2]


# %% tags=["wrong"]
def tabs_to_rows(text):
    """Keep the note in the target."""
    columns = [line.split("\t", 1) for line in text.splitlines()]
    return [{"source": row[0], "target": row[1]} for row in columns if len(row) == 2]


# %% tags=["solution"]
def tabs_to_rows(text):
    """Parse text with tab-separated columns into rows."""
    columns = [line.split("\t") for line in text.splitlines()]
    return [{"source": row[0], "target": row[1]} for row in columns if len(row) >= 2]


# %% tags=["check"]
pairs = [("Go.", "Ve."), ("Hi there.", "Hola."), ("Two words", "dos palabras")]
rows = tabs_to_rows(
    "\n\n".join("\t".join([*pair, "a note"]) for pair in pairs) + "\nno tab\n"
)
assert [tuple(row.values()) for row in rows] == pairs, rows
assert all(list(row) == ["source", "target"] for row in rows), (
    "each row needs a source and a target"
)

# %% [markdown]
# This writes the rows to files, in the form that `train` reads:

# %%
folder.parent.mkdir(parents=True, exist_ok=True)
files = {
    split: folder.parent / f"notebook-{split}.jsonl"
    for split in ("train", "validation", "test")
}
for split, file in files.items():
    lines = (json.dumps(row, ensure_ascii=False) for row in phrases[split])
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
print(file.read_text(encoding="utf-8").splitlines()[0])

# %% [markdown]
# ## 2. Train
#
# A *recipe* is a file with the options of a training run. This one is made for a small data set and a small model: 128 wide, with
# 2 + 2 layers.

# %%
recipe = next(path for path in RECIPES if path.is_file())
print(recipe.read_text(encoding="utf-8"))

# %% [markdown]
# You can override any option. On the command line, this would be
# `vanilla-transformer train recipes/quickstart.yaml --train_file runs/notebook-train.jsonl`, and so on.

# %%
options = {
    **{f"{split}_file": file for split, file in files.items()},
    "output_dir": folder,
    "max_eval_samples": 20 if QUICK else 200,
    "report_to": "none",
}
if QUICK:
    options |= {
        "max_steps": 20,
        "d_model": 32,
        "d_ff": 64,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "vocab_size": 500,
    }
if not (folder / "README.md").exists():  # skip training if the model exists
    scores = train.main(
        [str(recipe), *(f"--{name}={value}" for name, value in options.items())]
    )
    print(scores["test"])

# %%
Image(filename=folder / "curves.png", width=700)

# %% [markdown]
# ## 3. Translate

# %%
model, tokenizer = load_model(folder), AutoTokenizer.from_pretrained(folder)
for text in [
    "Wednesday, July 4, 2029",
    "12 kilometers or 3 miles",
    "The weather is nice today.",
]:
    print(text, "->", translate([text], model, tokenizer)[0])

# %% [markdown]
# It knows phrases and nothing else: a sentence about the weather comes out as nonsense. That is due to the data, not the
# architecture.
#
# ### Exercise 2: a score
#
# How good is it? Write `exact_match(outputs, targets)`: the share of outputs that are equal to their target, from 0 to 1.


# %% tags=["exercise"]
def exact_match(outputs, targets):
    """Return the share of equal pairs."""
    return 0.0  # your code


# %% tags=["wrong"]
def exact_match(outputs, targets):
    """Return a made-up share."""
    return 0.9


# %% tags=["wrong"]
def exact_match(outputs, targets):
    """Ignore the order."""
    return len(set(outputs) & set(targets)) / len(targets)


# %% tags=["solution"]
def exact_match(outputs, targets):
    """Return the share of equal pairs."""
    return sum(
        output == target for output, target in zip(outputs, targets, strict=True)
    ) / len(targets)


# %% tags=["check"]
for outputs, expected in (
    (["uno", "dos"], 1),
    (["dos", "uno"], 0),
    (["uno", "uno"], 0.5),
):
    assert exact_match(outputs, ["uno", "dos"]) == expected, (
        f"{outputs} and ['uno', 'dos']: {expected}"
    )

# %%
test = phrases["test"].select(range(50))
outputs = translate(list(test["source"]), model, tokenizer)
print(
    f"{exact_match(outputs, list(test['target'])):.0%} of 50 test phrases are exactly right"
)

# %% [markdown]
# ## 4. One training step
#
# `train` did 500 steps. Each one is the same four lines: run the model on a batch, compute the loss, compute the gradients, update
# the weights. A model of the project returns the loss if you give it `labels`, the right target.

# %%
batch = tokenizer(
    ["4 apples", "the 5th of May"],
    text_target=["4 manzanas", "el 5 de mayo"],
    padding=True,
    return_tensors="pt",
)
batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100  # no loss for padding
with torch.no_grad():
    print(f"loss before: {model(**batch).loss:.3f}")

# %% [markdown]
# ### Exercise 3: a step
#
# Write `train_step(model, batch, optimizer)`, which does one training step and returns the loss as a float. Gradients add up in
# PyTorch, so clear the old ones first.


# %% tags=["exercise"]
def train_step(model, batch, optimizer):
    """Do one training step and return the loss."""
    return 0.0  # your code


# %% tags=["wrong"]
def train_step(model, batch, optimizer):
    """Only compute the loss."""
    with torch.no_grad():
        return model(**batch).loss.item()


# %% tags=["wrong"]
def train_step(model, batch, optimizer):
    """Keep the gradients of the last step."""
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    return loss.item()


# %% tags=["solution"]
def train_step(model, batch, optimizer):
    """Do one training step and return the loss."""
    optimizer.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    return loss.item()


# %% tags=["check"]
student, teacher = copy.deepcopy(model), copy.deepcopy(model)
optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
for step in (1, 2):
    loss = teacher(**batch).loss
    gradients = torch.autograd.grad(loss, list(teacher.parameters()))
    assert abs(train_step(student, batch, optimizer) - loss.item()) < 1e-3, (
        f"step {step}: another loss than the model's"
    )
    for weight, other, gradient in zip(
        student.parameters(), teacher.parameters(), gradients, strict=True
    ):
        other.data -= 0.01 * gradient
        assert torch.allclose(weight, other, atol=1e-5), (
            f"step {step}: not weight - learning rate * gradient"
        )

# %% [markdown]
# ## 5. Search: which translation is the most probable?
#
# The model gives a probability to each next token. The probability of a whole translation is the product, so its logarithm is the
# sum of the log-probabilities. `scorer(text)` returns a function that returns them for a beginning, a list of tokens:


# %%
def scorer(text):
    """Return a function from a beginning to the log-probabilities of the next token."""
    source = tokenizer(text, return_tensors="pt")

    @torch.no_grad()
    def next_log_probs(beginning):
        target = torch.tensor([[model.config.decoder_start_token_id, *beginning]])
        return (
            model(**source, decoder_input_ids=target).logits[0, -1].log_softmax(dim=-1)
        )

    return next_log_probs


likeliest = scorer("Tuesday, March 8")([]).topk(3)
for log_p, token in zip(likeliest.values, likeliest.indices, strict=True):
    print(f"{tokenizer.decode([token]):>10} {log_p.exp():.1%}")

# %% [markdown]
# *Greedy search* takes the most probable token every time. That may lead into a dead end: a good first token whose continuations are
# all bad. *Beam search* keeps the best few beginnings instead:
#
# 1. Start with one empty beginning, with the score 0.
# 2. Extend each beginning by each possible token. Its score is the sum of the log-probabilities. Beginnings that end with the
#    end token stay as they are.
# 3. Of all these, keep the `width` best. Go back to 2 until all of them have ended, or have `longest` tokens.
#
# ### Exercise 4: a beam
#
# Write `beam_search(next_log_probs, width, end, longest)`, which returns the best list of tokens and its score. (For a large
# vocabulary, it is enough to extend a beginning by its `width` most probable tokens: `topk`.)


# %% tags=["exercise"]
def beam_search(next_log_probs, width, end, longest):
    """Return the best tokens that beam search finds, and their score."""
    return [], 0.0  # your code


# %% tags=["wrong"]
def beam_search(next_log_probs, width, end, longest):
    """Search greedily, whatever the width."""
    tokens, score = [], 0.0
    while len(tokens) < longest and tokens[-1:] != [end]:
        log_p, token = next_log_probs(tokens).max(dim=-1)
        tokens, score = [*tokens, token.item()], score + log_p.item()
    return tokens, score


# %% tags=["wrong"]
def beam_search(next_log_probs, width, end, longest):
    """Keep everything."""
    beam = [([], 0.0)]
    for _ in range(longest):
        longer = []
        for tokens, score in beam:
            if tokens[-1:] == [end]:
                longer.append((tokens, score))
                continue
            longer += [
                ([*tokens, i], score + p)
                for i, p in enumerate(next_log_probs(tokens).tolist())
            ]
        beam = sorted(longer, key=lambda item: -item[1])
    return beam[0]


# %% tags=["wrong"]
def beam_search(next_log_probs, width, end, longest):
    """Go on after the end token."""
    beam = [([], 0.0)]
    for _ in range(longest):
        longer = [
            ([*tokens, i], score + p)
            for tokens, score in beam
            for i, p in enumerate(next_log_probs(tokens).tolist())
        ]
        beam = sorted(longer, key=lambda item: -item[1])[:width]
    return beam[0]


# %% tags=["solution"]
def beam_search(next_log_probs, width, end, longest):
    """Return the best tokens that beam search finds, and their score."""
    beam = [([], 0.0)]
    while any(tokens[-1:] != [end] and len(tokens) < longest for tokens, _ in beam):
        longer = []
        for tokens, score in beam:
            if tokens[-1:] == [end]:
                longer.append((tokens, score))
                continue
            log_probs = next_log_probs(tokens)
            best = log_probs.topk(min(width, len(log_probs)))
            pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
            longer += [([*tokens, token], score + log_p) for log_p, token in pairs]
        beam = sorted(longer, key=lambda item: item[1], reverse=True)[:width]
    return beam[0]


# %% tags=["check"]
from itertools import product

for seed in range(10):  # toy languages with two words and an end token, 0
    asked = []

    def toy(beginning, seed=seed, asked=asked):
        asked.append(len(beginning))
        digits = int("1" + "".join(map(str, beginning)))
        return torch.randn(
            3, generator=torch.Generator().manual_seed(1000 * seed + digits)
        ).log_softmax(dim=-1)

    def score_of(tokens):
        return sum(toy(tokens[:i])[token].item() for i, token in enumerate(tokens))

    greedy = []
    while len(greedy) < 4 and greedy[-1:] != [0]:
        greedy.append(toy(greedy).argmax().item())
    whole = [
        list(row)
        for n in (1, 2, 3, 4)
        for row in product((0, 1, 2), repeat=n)
        if 0 not in row[:-1]
    ]
    best = max((row for row in whole if row[-1] == 0 or len(row) == 4), key=score_of)
    for width, expected in ((1, greedy), (100, best)):
        tokens, score = beam_search(toy, width, end=0, longest=4)
        assert tokens == expected, (
            f"toy language {seed}, width {width}: {tokens} instead of {expected}"
        )
        assert abs(score - score_of(expected)) < 1e-4, (
            f"the score of {tokens} is {score_of(expected):.3f}"
        )
    asked.clear()
    beam_search(toy, 2, end=0, longest=4)
    assert all(asked.count(length) <= 2 for length in range(4)), (
        "with width 2, extend at most 2 beginnings in each round"
    )

# %% [markdown]
# The same search with your translator, for phrases that it knows and texts that it does not. Where it is sure, greedy search is
# enough. Where it is not, a wider beam finds translations that are more probable, though not better.

# %%
for text in ("Tuesday, March 8", "I like to travel.", "Twelve angry men"):
    print(text)
    for width in (1, 2, 4):
        end = model.config.eos_token_id
        tokens, score = beam_search(scorer(text), width, end, longest=30)
        written = tokenizer.decode(tokens, skip_special_tokens=True)
        print(f"    width {width}: log-probability {score:6.2f}  {written}")

# %% [markdown]
# The paper uses a width of 4, and divides the score by a power of the length, because longer translations have more factors below 1.
#
# ## 6. Share it
#
# The folder has everything: weights, tokenizer, code, and a model card with the scores. `vanilla-transformer push
# runs/notebook-translator USER/NAME` uploads it to the Hub, [Deploy](../deploy.md) shows what else you can do with it, and
# [look inside](look_inside.ipynb) opens it if you set `TRANSLATOR=runs/notebook-translator`.
