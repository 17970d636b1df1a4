# %% [markdown]
# # Look inside a trained model
#
# You will take a translator that has been trained, watch one sentence go through it, and find out what its heads attend to.
# You need to have seen [attention by hand](attention_by_hand.ipynb). It takes a few minutes, most of them for loading.
#
# **What you will be able to do at the end:** read an attention map; follow a sentence through all layers; find the word
# that a translation comes from; and test a claim about what a head does.

# %%
import os

import torch
from transformers import AutoTokenizer

from vanilla_transformer.decoding import translate
from vanilla_transformer.inside import record
from vanilla_transformer.inside.recorder import find_stacks
from vanilla_transformer.inside.walks import words_of
from vanilla_transformer.loading import load_model


torch.set_printoptions(precision=2, sci_mode=False)

# %% [markdown]
# ## 1. A translator
#
# `checkpoints/en-es` ships with the project: it translates short English sentences to Spanish. (Outside a clone, it comes from
# the Hub. Any translator of yours will do: set the variable `TRANSLATOR` to its folder.)

# %%
folder = os.environ.get("TRANSLATOR")
if folder is None:
    from vanilla_transformer.loading import shipped_model

    folder = shipped_model("en-es")
model, tokenizer = load_model(folder), AutoTokenizer.from_pretrained(folder)
sentence = "I like to travel."
print(translate([sentence], model, tokenizer)[0])

# %% [markdown]
# ## 2. One head, one picture
#
# `record` runs the model once and writes down every step of one layer. The weights of the decoder's cross-attention say which
# source tokens each target token looks at. Rows are target tokens (what the decoder reads), columns source tokens.

# %%
source = tokenizer(sentence, return_tensors="pt")
output = model.generate(**source)
source_words = words_of(source["input_ids"], tokenizer)[0]
target_words = words_of(output[:, :-1], tokenizer)[0]
inputs = {**source, "decoder_input_ids": output[:, :-1]}


def weights(part, stack="decoder", layer=0):
    """The attention weights of all heads of a layer: (heads, queries, keys). Layers count from 0 here."""
    steps = record(model, inputs, layer=layer, stack=stack)
    return next(step.tensor[0] for step in steps if (step.part, step.name) == (part, "weights"))


def show(matrix, rows, columns):
    """Print an attention map, a line for each query, with the two keys that it looks at most."""
    for row, word in zip(matrix, rows, strict=True):
        likely = row.topk(min(2, len(row)))
        seen = ", ".join(f"{columns[k]} {p:.0%}" for p, k in zip(likely.values, likely.indices, strict=True))
        print(f"{word:>12} looks at {seen}")


layers = len(find_stacks(model)["decoder"].layers)
show(weights("cross-attention", layer=layers - 1).mean(dim=0), target_words, source_words)

# %% [markdown]
# That is the mean over the heads of the last layer. Each head by itself does something else:

# %%
for head, matrix in enumerate(weights("cross-attention", layer=layers - 1), start=1):
    print(f"\nhead {head}")
    show(matrix, target_words, source_words)

# %% [markdown]
# ### Exercise 1
#
# How sure is a head? The entropy $-\sum_j a_j \ln a_j$ of a row of weights is 0 where all weight lies on one key, and
# $\ln n$ where $n$ keys share it evenly. Compute `entropies`, the mean entropy over the rows for each head of the last
# layer's cross-attention: a tensor with one number for each head.

# %% tags=["exercise"]
entropies = None  # your code

# %% tags=["solution"]
A = weights("cross-attention", layer=layers - 1)
entropies = -(A * A.clamp(min=1e-9).log()).sum(dim=-1).mean(dim=-1)

# %% tags=["check"]
assert entropies is not None and entropies.shape == (model.config.num_heads,), "one number for each head"
assert (entropies >= 0).all() and (entropies <= torch.log(torch.tensor(len(source_words))) + 1e-4).all()

# %% [markdown]
# ## 3. From layer to layer
#
# The embedding of a word knows nothing of its sentence. With every layer, the vectors take more from each other. Let us
# measure how similar the vectors of two different tokens are on average: the cosine of the angle between them.


# %%
def mean_cosine(states):
    """Of all pairs of different rows of states (length, d_model)."""
    unit = torch.nn.functional.normalize(states, dim=-1)
    cosines = unit @ unit.T
    return (cosines.sum() - cosines.trace()) / (len(states) * (len(states) - 1))


with torch.no_grad():
    states = model.model.encoder(**source, output_hidden_states=True).hidden_states
for number, layer_states in enumerate(states):
    name = "embeddings" if number == 0 else f"layer {number}"
    print(f"{name:>10}: mean cosine {mean_cosine(layer_states[0]):.2f}")

# %% [markdown]
# ## 4. Does a head matter?
#
# A claim about a head wants a test: switch it off and see what changes. A head is switched off by setting its columns of
# $W^O$ to zero.
#
# ### Exercise 2
#
# Write `without_head(layer, head)`, which gives the translation with one head of the decoder's cross-attention switched off (both
# counted from 0), and leaves the model as it was. `model.model.decoder.layers[layer].cross_attn.o_proj.weight` has the shape
# (d_model, heads · d_v), and the columns of a head lie side by side.


# %% tags=["exercise"]
def without_head(layer, head):
    """The translation of `sentence` without one head."""
    return None  # your code


# %% tags=["solution"]
def without_head(layer, head):
    """The translation of `sentence` without one head."""
    weight, d_v = model.model.decoder.layers[layer].cross_attn.o_proj.weight, model.config.d_v
    kept = weight.detach().clone()
    with torch.no_grad():
        weight[:, head * d_v : (head + 1) * d_v] = 0
        try:
            return translate([sentence], model, tokenizer)[0]
        finally:
            weight.copy_(kept)


# %% tags=["check"]
before = translate([sentence], model, tokenizer)[0]
assert isinstance(without_head(0, 0), str), "it must give a translation"
assert translate([sentence], model, tokenizer)[0] == before, "the model must be as it was"

# %%
for layer in range(layers):
    for head in range(model.config.num_heads):
        print(f"without head {head + 1} of layer {layer + 1}: {without_head(layer, head)}")

# %% [markdown]
# Most heads can go without harm: others have learned nearly the same. Which ones cannot?
#
# ## 5. Words that are alike
#
# The embedding matrix has a row for each token, learned with everything else. Tokens that are used alike come to lie in similar
# directions. How similar two directions are is said by the cosine of the angle between them: 1 for the same, 0 for a right angle.

# %%
embeddings = model.get_input_embeddings().weight.detach()


def rows(word):
    """The rows of the embedding matrix that belong to a word inside a sentence: (tokens, d_model)."""
    return embeddings[tokenizer(" " + word, add_special_tokens=False)["input_ids"]]


# %% [markdown]
# ### Exercise 3
#
# Write `similarity(first, second)`, the cosine between the embeddings of two words, as a float. Of a word that has several
# tokens, take the mean of its `rows`.


# %% tags=["exercise"]
def similarity(first, second):
    """The cosine between two words."""
    return 2.0  # your code


# %% tags=["solution"]
def similarity(first, second):
    """The cosine between two words."""
    return torch.cosine_similarity(rows(first).mean(dim=0), rows(second).mean(dim=0), dim=0).item()


# %% tags=["check"]
assert abs(similarity("three", "three") - 1) < 1e-5, "a word and itself: 1"
assert abs(similarity("three", "two") - similarity("two", "three")) < 1e-6, "the order makes no difference"
assert -1 <= similarity("three", "travel") <= 1

# %% [markdown]
# In numbers, for pairs that are alike and pairs that are not:

# %%
for first, second in (
    ("three", "four"),
    ("boy", "girl"),
    ("Monday", "Tuesday"),
    ("three", "girl"),
    ("Monday", "four"),
):
    cosine = torch.cosine_similarity(rows(first).mean(dim=0), rows(second).mean(dim=0), dim=0)
    print(f"{first:>8} {second:<8} {cosine:.2f}")

# %% [markdown]
# And as a map: the two directions in which these words differ most (their principal components), out of all that there are.

# %%
from matplotlib import pyplot as plt


some = "one two three four five Monday Tuesday Friday January May boy girl man woman to from in on".split()
points = torch.stack([rows(word).mean(dim=0) for word in some])
points = points - points.mean(dim=0)
points = points @ torch.linalg.svd(points, full_matrices=False).Vh[:2].T
plt.scatter(*points.T)
for word, point in zip(some, points.tolist(), strict=True):
    plt.annotate(word, point)
plt.show()

# %% [markdown]
# ## 6. Every equation, in the browser
#
# The walk writes all of it as a page, with each matrix and the words beside its rows:

# %%
from vanilla_transformer.inside.rendering import page_html
from vanilla_transformer.inside.walks import walk_sentence


walk = walk_sentence(model, tokenizer, sentence, stack="decoder", layer=layers - 1)
page = page_html([walk], precision=3)
print(f"{len(walk.steps)} steps; the likeliest next words:", [word for word, _ in walk.likeliest])

# %% [markdown]
# In a notebook, show it with `from IPython.display import HTML; HTML(page)`. On the command line:
# `python scripts/walkthrough.py --text "I like to travel." --html walk.html`.
