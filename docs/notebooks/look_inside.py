# %% [markdown]
# # Look inside a trained model
#
# You will take a trained translator, watch a sentence go through it, and find out what its heads attend to. Work through
# [attention by hand](attention_by_hand.ipynb) first. This notebook takes a few minutes, most of them for loading.
#
# **By the end you will be able to** read an attention map; follow a sentence through all layers; find the word that a
# translation comes from; and test a claim about what a head does.

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
# `checkpoints/en-es` comes with the project. It translates short English sentences into Spanish. (Outside a clone, it is
# fetched from the Hub. To use a translator of your own, set the environment variable `TRANSLATOR` to its folder.)

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
# `record` runs the model once and writes down every step of one layer. The weights of the decoder's cross-attention show which
# source tokens each target token looks at. Rows are target tokens (what the decoder reads), columns are source tokens.

# %%
source = tokenizer(sentence, return_tensors="pt")
output = model.generate(**source)
source_words = words_of(source["input_ids"], tokenizer)[0]
target_words = words_of(output[:, :-1], tokenizer)[0]
inputs = {**source, "decoder_input_ids": output[:, :-1]}


def weights(part, stack="decoder", layer=0):
    """Return the attention weights of all heads of a layer (heads, queries, keys). Layers count from 0 here."""
    steps = record(model, inputs, layer=layer, stack=stack)
    return next(step.tensor[0] for step in steps if (step.part, step.name) == (part, "weights"))


def show(matrix, rows, columns):
    """Print an attention map: for each query, the two keys with the largest weights."""
    for row, word in zip(matrix, rows, strict=True):
        likely = row.topk(min(2, len(row)))
        seen = ", ".join(f"{columns[k]} {p:.0%}" for p, k in zip(likely.values, likely.indices, strict=True))
        print(f"{word:>12} looks at {seen}")


layers = len(find_stacks(model)["decoder"].layers)
show(weights("cross-attention", layer=layers - 1).mean(dim=0), target_words, source_words)

# %% [markdown]
# That is the mean over the heads of the last layer. Each single head does something different:

# %%
for head, matrix in enumerate(weights("cross-attention", layer=layers - 1), start=1):
    print(f"\nhead {head}")
    show(matrix, target_words, source_words)

# %% [markdown]
# ### Exercise 1
#
# How focused is a head? The entropy $-\sum_j a_j \ln a_j$ of a row of weights is 0 if all the weight is on one key, and
# $\ln n$ if $n$ keys share it evenly. Compute `entropies`: for each head of the last layer's cross-attention, the mean
# entropy over its rows. The result is a tensor with one number per head.

# %% tags=["exercise"]
entropies = None  # your code

# %% tags=["solution"]
A = weights("cross-attention", layer=layers - 1)
entropies = -(A * A.clamp(min=1e-9).log()).sum(dim=-1).mean(dim=-1)

# %% tags=["check"]
assert entropies is not None and entropies.shape == (model.config.num_heads,), "one number per head"
assert (entropies >= 0).all() and (entropies <= torch.log(torch.tensor(len(source_words))) + 1e-4).all()

# %% [markdown]
# ## 3. From layer to layer
#
# The embedding of a word knows nothing about its sentence. Layer by layer, the vectors take in more of each other. How similar
# are the vectors of two different tokens on average? Let us measure the cosine of the angle between them.


# %%
def mean_cosine(states):
    """Return the mean cosine between different rows of states (length, d_model)."""
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
# To test a claim about a head, switch it off and see what changes. Setting a head's columns of $W^O$ to zero switches it off.
#
# ### Exercise 2
#
# Write `without_head(sentence, layer, head)`, which translates a sentence with one head of the decoder's cross-attention switched
# off (layer and head counted from 0) and leaves the model as it was.
# `model.model.decoder.layers[layer].cross_attn.o_proj.weight` has the shape (d_model, heads · d_v); the columns of a head are next
# to each other.


# %% tags=["exercise"]
def without_head(sentence, layer, head):
    """Translate a sentence without one head."""
    return None  # your code


# %% tags=["solution"]
def without_head(sentence, layer, head):
    """Translate a sentence without one head."""
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
assert isinstance(without_head(sentence, 0, 0), str), "it must give a translation"
assert translate([sentence], model, tokenizer)[0] == before, "the model must be as it was"

# %% [markdown]
# Which heads change something?

# %%
for text in (
    sentence,
    "My brother lives in a small house near the river.",
    "She told me that she wanted to learn French.",
):
    usual = translate([text], model, tokenizer)[0]
    print(f"\n{text} -> {usual}")
    for layer in range(layers):
        for head in range(model.config.num_heads):
            if (other := without_head(text, layer, head)) not in (None, usual):
                print(f"  without head {head + 1} of layer {layer + 1}: {other}")

# %% [markdown]
# Most heads can be removed without any harm, because others have learned nearly the same thing. The few that change something tell
# you what they were good for: without head 2 of layer 2, for example, our translator puts "small" before the house, as English
# does.
#
# ## 5. Words that are alike
#
# The embedding matrix has a row for each token, learned along with everything else. Tokens that are used in similar ways end up
# pointing in similar directions. The cosine of the angle between two directions measures this: it is 1 for the same direction
# and 0 for a right angle.

# %%
embeddings = model.get_input_embeddings().weight.detach()


def rows(word):
    """Return the rows of the embedding matrix for a word inside a sentence (tokens, d_model)."""
    return embeddings[tokenizer(" " + word, add_special_tokens=False)["input_ids"]]


# %% [markdown]
# ### Exercise 3
#
# Write `similarity(first, second)`, which returns the cosine between the embeddings of two words as a float. If a word has
# several tokens, take the mean of its `rows`.


# %% tags=["exercise"]
def similarity(first, second):
    """Return the cosine between two words."""
    return 2.0  # your code


# %% tags=["solution"]
def similarity(first, second):
    """Return the cosine between two words."""
    return torch.cosine_similarity(rows(first).mean(dim=0), rows(second).mean(dim=0), dim=0).item()


# %% tags=["check"]
assert abs(similarity("three", "three") - 1) < 1e-5, "a word and itself: 1"
assert abs(similarity("three", "two") - similarity("two", "three")) < 1e-6, "the order must not matter"
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
# And as a map: of all directions, it shows the two in which these words differ most (their principal components).

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
# The walk writes everything as a page, with each matrix and the words next to its rows:

# %%
from vanilla_transformer.inside.rendering import page_html
from vanilla_transformer.inside.walks import walk_sentence


walk = walk_sentence(model, tokenizer, sentence, stack="decoder", layer=layers - 1)
page = page_html([walk], precision=3)
print(len(walk.steps), "steps")
for place, words in walk.likeliest:
    print(f"{place:>12}:", [word for word, _ in words])

# %% [markdown]
# In a notebook, show it with `from IPython.display import HTML; HTML(page)`. On the command line:
# `vanilla-transformer walk --text "I like to travel." --html walk.html`.
