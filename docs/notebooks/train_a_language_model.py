# %% [markdown]
# # A small language model from scratch
#
# You will train a decoder on real text, and let it write. The text is 100,000 English sentences that people wrote for
# learners of languages. Training takes about a minute on two cores. A `.txt` file of your own works just as well.
#
# **By the end you will be able to** say what a language model learns; interpret perplexity; explain what the temperature does; and
# find out what a head attends to.

# %%
import gzip
import json
import math
import os
from pathlib import Path

import torch
from IPython.display import Image
from matplotlib import pyplot as plt
from transformers import AutoTokenizer, set_seed

from vanilla_transformer.cli import train
from vanilla_transformer.decoding import continue_text
from vanilla_transformer.inside import explore, record
from vanilla_transformer.inside.walks import words_of
from vanilla_transformer.loading import CHECKPOINTS, HUB_NAME, load_model


QUICK = os.environ.get("QUICK") == "1"  # set by the tests, for a run of a few seconds
folder = Path("runs/notebook-language-model")

# %% [markdown]
# ## 1. A text
#
# The sentences come from [Tatoeba](https://tatoeba.org) (CC BY 2.0) by way of [manythings.org/anki](https://www.manythings.org/anki).
# They lie in `recipes/data`. Outside a clone, they are fetched from the Hub.
#
# Replace `sentences` with lines of your own: a book, your notes, a season of subtitles. A hundred kilobytes is not much; a few
# megabytes are better.

# %%
name = "recipes/data/tatoeba_en_es/train.jsonl.gz"
file = CHECKPOINTS.parent / name
if not file.exists():
    from huggingface_hub import hf_hub_download

    file = hf_hub_download(HUB_NAME, name)
with gzip.open(file, "rt", encoding="utf-8") as lines:
    sentences = list(
        dict.fromkeys(json.loads(line)["en"] for line in lines)
    )  # each one once
if QUICK:
    sentences = sentences[:1000]
text = Path("notebook-text.txt")
text.write_text("\n".join(sentences), encoding="utf-8")
print(
    f"{len(sentences):,} sentences, {text.stat().st_size / 1e6:.1f} MB. The first ones:"
)
print("\n".join(sentences[:5]))

# %% [markdown]
# ## 2. Train
#
# The model reads a row of 64 tokens and predicts, at each position, the token that comes next. The causal mask keeps it from
# attending to later tokens, so one row gives 64 predictions at once.

# %%
if not (folder / "README.md").exists():  # skip training if the model exists
    options = {
        "train_file": text,
        "sample_by": "line",
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
        "muon": True,
        "muon_momentum": 0.8,
        "init": "small",
        "learning_rate": 5e-3,
        "lr_scheduler_type": "linear",
        "warmup_steps": 6 if QUICK else 60,
        "max_steps": 10 if QUICK else 600,
        "max_eval_samples": 20 if QUICK else 200,
        "save_strategy": "no",
        "logging_steps": 5 if QUICK else 25,
        "report_to": "none",
    }
    scores = train.main(
        ["language_modeling", *(f"--{name}={value}" for name, value in options.items())]
    )
    print(scores)

# %%
Image(filename=folder / "curves.png", width=700)

# %% [markdown]
# ## 3. Perplexity
#
# The loss is the mean of $-\ln p$, where $p$ is the probability that the model gave to the token that actually came next. Its
# exponential is the *perplexity*: choosing among that many equally likely tokens would leave the model just as unsure.
#
# ### Exercise 1: perplexity
#
# Write `perplexity(sentence)`: tokenize the sentence, call the model with `labels` equal to the `input_ids`, and take the
# exponential of the loss.

# %%
model, tokenizer = load_model(folder), AutoTokenizer.from_pretrained(folder)


# %% tags=["exercise"]
def perplexity(sentence):
    """Return the perplexity of a sentence."""
    return 0.0  # your code


# %% tags=["wrong"]
def perplexity(sentence):
    """Return the loss itself."""
    batch = tokenizer(sentence, return_tensors="pt")
    with torch.no_grad():
        return model(**batch, labels=batch["input_ids"]).loss.item()


# %% tags=["wrong"]
def perplexity(sentence):
    """Return a made-up number."""
    return 40.0


# %% tags=["solution"]
def perplexity(sentence):
    """Return the perplexity of a sentence."""
    batch = tokenizer(sentence, return_tensors="pt")
    with torch.no_grad():
        return math.exp(model(**batch, labels=batch["input_ids"]).loss.item())


# %% tags=["check"]
for sentence in ("Tom is my brother.", "My the of brother."):
    ids = tokenizer(sentence)["input_ids"]
    with torch.no_grad():
        chances = model(torch.tensor([ids])).logits[0].softmax(dim=-1)
    product = math.prod(chances[i, token].item() for i, token in enumerate(ids[1:]))
    expected = product ** (-1 / (len(ids) - 1))
    assert abs(perplexity(sentence) / expected - 1) < 1e-3, (
        f"{sentence}: {expected:.1f}, not {perplexity(sentence):.1f}"
    )

# %%
for sentence in (
    "I don't know what to do.",
    "I know don't to what do.",
    "Xq zzv qwxk jjp.",
):
    print(f"{perplexity(sentence):12,.1f}  {sentence}")

# %% [markdown]
# ## 4. Let it write
#
# A token is drawn from the probabilities of the next one, appended to the text, and so on. The *temperature* $T$ divides the logits
# before the softmax. Below 1, likely tokens become even likelier: the text is safe and dull. Above 1, unlikely tokens come
# up more often, and in the end it is word salad.

# %%
prompt = "I think that"
for temperature in (0.2, 0.7, 1.0, 2.0):
    set_seed(1)
    written = continue_text(
        [prompt] * 4,
        model,
        tokenizer,
        do_sample=True,
        temperature=temperature,
        top_k=0,  # any token may be drawn
        max_new_tokens=12,
        max_length=None,
    )
    print(f"temperature {temperature}")
    print("".join(f"    {line}\n" for line in written))

# %% [markdown]
# ### Exercise 2: temperature
#
# Write `next_probabilities(prompt, temperature)`, which returns the probabilities of the token after the prompt: a tensor with one
# number per token of the vocabulary.


# %% tags=["exercise"]
def next_probabilities(prompt, temperature):
    """Return the probabilities of the next token."""
    return torch.ones(len(tokenizer)) / len(tokenizer)  # your code


# %% tags=["wrong"]
def next_probabilities(prompt, temperature):
    """Multiply instead of dividing."""
    with torch.no_grad():
        logits = model(**tokenizer(prompt, return_tensors="pt")).logits[0, -1]
    return (logits * temperature).softmax(dim=-1)


# %% tags=["wrong"]
def next_probabilities(prompt, temperature):
    """Look at the first position."""
    with torch.no_grad():
        logits = model(**tokenizer(prompt, return_tensors="pt")).logits[0, 0]
    return (logits / temperature).softmax(dim=-1)


# %% tags=["solution"]
def next_probabilities(prompt, temperature):
    """Return the probabilities of the next token."""
    with torch.no_grad():
        logits = model(**tokenizer(prompt, return_tensors="pt")).logits[0, -1]
    return (logits / temperature).softmax(dim=-1)


# %% tags=["check"]
with torch.no_grad():
    plain = (
        model(torch.tensor([tokenizer(prompt)["input_ids"]]))
        .logits[0, -1]
        .double()
        .softmax(dim=-1)
    )
for temperature in (0.5, 1, 2):
    powers = plain ** (1 / temperature)  # the same in another way
    expected = (powers / powers.sum()).float()
    assert torch.allclose(
        next_probabilities(prompt, temperature), expected, atol=1e-5
    ), f"temperature {temperature}"

# %% [markdown]
# The ten most probable next tokens, at three temperatures:

# %%
_, axes = plt.subplots(1, 3, figsize=(10, 3), sharey=True, layout="constrained")
top = next_probabilities(prompt, 1).topk(10).indices
for axis, temperature in zip(axes, (0.5, 1, 2), strict=True):
    axis.bar(range(10), next_probabilities(prompt, temperature)[top])
    axis.set_xticks(range(10), words_of(top[None], tokenizer)[0], rotation=60)
    axis.set_title(f"{prompt} ...   temperature {temperature}")
plt.show()

# %% [markdown]
# ### Exercise 3: the k likeliest tokens
#
# Even with a low temperature, a very unlikely token is drawn once in a while. *Top-k* sampling leaves only the `k` likeliest
# tokens. Write `keep_likeliest(logits, k)`, which returns a copy of `logits` (one number per token) with $-\infty$ for all others.


# %% tags=["exercise"]
def keep_likeliest(logits, k):
    """Leave only the k largest logits."""
    return logits  # your code


# %% tags=["wrong"]
def keep_likeliest(logits, k):
    """Set the others to 0, which is still possible."""
    return torch.where(logits >= logits.topk(k).values[-1], logits, 0.0)


# %% tags=["wrong"]
def keep_likeliest(logits, k):
    """Leave one token less."""
    return torch.where(logits > logits.topk(k).values[-1], logits, -math.inf)


# %% tags=["solution"]
def keep_likeliest(logits, k):
    """Leave only the k largest logits."""
    smallest = logits.topk(k).values[-1]
    return torch.where(logits >= smallest, logits, -math.inf)


# %% tags=["check"]
from transformers import TopKLogitsWarper

logits = torch.randn(100, generator=torch.Generator().manual_seed(0))
before = logits.clone()
for k in (1, 5, 100):
    assert torch.equal(
        keep_likeliest(logits, k), TopKLogitsWarper(k)(None, logits[None])[0]
    ), f"wrong for k = {k}"
assert torch.equal(logits, before), "return a copy"

# %% [markdown]
# ## 5. What do the heads attend to?
#
# Every token attends to itself and to earlier tokens. `weights(layer)` returns the attention weights of a layer for a sentence, with
# the shape (heads, queries, keys).

# %%
words = tokenizer("Tom said that he would like to go home.", return_tensors="pt")
layers, heads = model.config.num_hidden_layers, model.config.num_heads


def weights(layer):
    """Return the attention weights of a layer, counted from 1."""
    return next(
        step.tensor[0]
        for step in record(model, words, layer=layer - 1)
        if step.name == "weights"
    )


print(tuple(weights(1).shape))

# %% [markdown]
# ### Exercise 4: a head
#
# Which head attends most to the *previous* token? Compute `share`, a tensor of the shape (layers, heads): the mean weight
# that queries 2, 3, ... give to the key just before them.

# %% tags=["exercise"]
share = torch.zeros(layers, heads)  # your code

# %% tags=["wrong"]
share = torch.stack(
    [
        weights(layer).diagonal(dim1=-2, dim2=-1).mean(dim=-1)
        for layer in range(1, layers + 1)
    ]
)

# %% tags=["wrong"]
share = torch.stack(
    [weights(layer)[:, :, 0].mean(dim=-1) for layer in range(1, layers + 1)]
)

# %% tags=["solution"]
share = torch.stack(
    [
        weights(layer).diagonal(-1, dim1=-2, dim2=-1).mean(dim=-1)
        for layer in range(1, layers + 1)
    ]
)

# %% tags=["check"]
assert share.shape == (layers, heads), "one number per layer and head"
for layer in range(layers):
    for head in range(heads):
        rows = weights(layer + 1)[head].tolist()
        expected = sum(row[i] for i, row in enumerate(rows[1:])) / (len(rows) - 1)
        assert abs(share[layer, head] - expected) < 1e-5, (
            f"layer {layer + 1}, head {head + 1}: {expected:.3f}"
        )

# %%
layer, head = divmod(share.argmax().item(), heads)
print(
    f"Head {head + 1} of layer {layer + 1} gives the previous token {share.max():.0%} of its weight."
)
tokens = words_of(words["input_ids"], tokenizer)[0]
plt.figure(figsize=(5, 4))
plt.imshow(weights(layer + 1)[head], cmap="Blues", vmin=0, vmax=1)
plt.xticks(range(len(tokens)), tokens, rotation=90)
plt.yticks(range(len(tokens)), tokens)
plt.title(f"layer {layer + 1}, head {head + 1}")
plt.show()

# %% [markdown]
# All of it in one interactive picture (GitHub does not show it; Jupyter, Colab and the project's site do):

# %%
explore(model, tokenizer, "Tom said that he", small=True)

# %% [markdown]
# **Go on:** `vanilla-transformer generate --model runs/notebook-language-model < prompts.txt` writes from the command line,
# `vanilla-transformer serve runs/notebook-language-model` answers over HTTP, and
# [the results](../results.md) include a recipe for Tiny Shakespeare.
