# %% [markdown]
# # Look inside a trained model
#
# You will take a trained translator, watch a sentence go through it, and find out what its heads attend to. Work through
# [attention by hand](attention_by_hand.ipynb) first. This notebook takes about a minute, most of it for loading.
#
# **By the end you will be able to** read an attention map; say what each layer adds; test a claim about what a head does; and
# measure how similar two words are to the model.

# %%
import os

import torch
from matplotlib import pyplot as plt
from transformers import AutoTokenizer

from vanilla_transformer.decoding import translate
from vanilla_transformer.inside import Interventions, explore, intervene, record
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
layers, heads = model.config.decoder_layers, model.config.num_heads
sentence = "I like to travel."
print(translate([sentence], model, tokenizer)[0])

# %% [markdown]
# The *source* is the sentence that the encoder reads. The *target* is the translation, which the decoder writes token by token. `<s>`
# starts it and `</s>` ends it; `␣` is a space. At each position, the decoder reads one token and predicts the next.

# %%
source = tokenizer(sentence, return_tensors="pt")
output = model.generate(**source, max_new_tokens=20)
inputs = {**source, "decoder_input_ids": output[:, :-1]}
source_words = words_of(source["input_ids"], tokenizer)[0]
target_words = words_of(output[:, :-1], tokenizer)[0]
print("source:", source_words)
print("target:", target_words)

# %% [markdown]
# ## 2. What the heads attend to
#
# `record` runs the model once and writes down every step of one layer. In *cross-attention*, the decoder attends to the
# source. Each square below is one weight: the row is the token that the decoder reads, the column is the source token that it
# attends to. Dark means a large share; each row sums to 1.


# %%
def weights(layer, part="cross-attention", stack="decoder"):
    """Return the attention weights of all heads of a layer (heads, queries, keys). Layers count from 1."""
    steps = record(model, inputs, layer=layer - 1, stack=stack)
    return next(
        step.tensor[0] for step in steps if (step.part, step.name) == (part, "weights")
    )


def show(maps, rows, columns):
    """Draw one attention map per head."""
    _, axes = plt.subplots(
        2, (len(maps) + 1) // 2, figsize=(9, 5.5), layout="constrained", squeeze=False
    )
    for number, (axis, weights_of_head) in enumerate(
        zip(axes.flat, maps, strict=False), start=1
    ):
        axis.imshow(weights_of_head, cmap="Blues", vmin=0, vmax=1)
        axis.set_title(f"head {number}", fontsize=10)
        axis.set_xticks(range(len(columns)), columns, rotation=90, fontsize=8)
        axis.set_yticks(range(len(rows)), rows, fontsize=8)
    plt.show()


show(weights(layers), target_words, source_words)

# %% [markdown]
# Each head does something different. Some attend to the word that is translated next, some to the end of the sentence.
#
# ### Exercise 1: focused heads
#
# How focused is a head? The entropy $-\sum_j a_j \ln a_j$ of a row of weights is 0 if all the weight is on one token, and
# $\ln n$ if $n$ tokens share it evenly. Compute `entropies`: for each head of the last layer's cross-attention, the mean
# entropy over its rows. The result is a tensor with one number per head. (The weights are greater than 0.)

# %% tags=["exercise"]
entropies = None  # your code

# %% tags=["wrong"]
entropies = torch.zeros(heads)

# %% tags=["wrong"]
A = weights(1)
entropies = -(A * A.log()).sum(dim=-1).mean(dim=-1)

# %% tags=["wrong"]
A = weights(layers)
entropies = -(A * A.log()).mean(dim=(-2, -1))

# %% tags=["solution"]
A = weights(layers)
entropies = -(A * A.clamp(min=1e-30).log()).sum(dim=-1).mean(dim=-1)

# %% tags=["check"]
assert entropies is not None and entropies.shape == (heads,), "one number per head"
expected = torch.distributions.Categorical(probs=weights(layers)).entropy().mean(dim=-1)
assert torch.allclose(entropies, expected, atol=1e-4), (
    "add up over the keys, then take the mean over the rows"
)

# %% [markdown]
# ## 3. The whole model in one picture
#
# `explore` draws everything about this one prediction. Click a token, a layer or a head. (It needs JavaScript: GitHub does
# not show it, but Jupyter, Colab and the project's site do.)
#
# `small=True` keeps the stored notebook small. Without it, the model becomes part of the picture (about 13 MB): then you can type
# other sentences, switch parts off, and see the numbers of every step.

# %%
explore(model, tokenizer, sentence, small=True)

# %% [markdown]
# ## 4. What does each layer add?
#
# Skip the later layers of the decoder, and see which token the rest of the model would write. `intervene` changes the model
# inside a `with` block, and restores it afterwards. `layers_off` holds the layers to skip, and `heads_off` the heads to switch
# off. These two count from 0, as Python does: this skips layer 1 of the decoder.

# %%
with torch.no_grad(), intervene(model, Interventions(layers_off={("decoder", 0)})):
    print(words_of(model(**inputs).logits.argmax(dim=-1), tokenizer)[0])

# %% [markdown]
# ### Exercise 2: layers
#
# Write `first_layers(kept)`, which returns the logits of the model for `inputs` if only the first `kept` layers of the
# decoder run. The shape is (1, target length, vocabulary).


# %% tags=["exercise"]
def first_layers(kept):
    """Return the logits of the first layers alone."""
    with torch.no_grad():
        return model(**inputs).logits  # your code


# %% tags=["wrong"]
def first_layers(kept):
    """Skip the first layers instead of the last ones."""
    off = {("decoder", layer) for layer in range(kept)}
    with torch.no_grad(), intervene(model, Interventions(layers_off=off)):
        return model(**inputs).logits


# %% tags=["wrong"]
def first_layers(kept):
    """Keep one layer more."""
    off = {("decoder", layer) for layer in range(kept + 1, layers)}
    with torch.no_grad(), intervene(model, Interventions(layers_off=off)):
        return model(**inputs).logits


# %% tags=["solution"]
def first_layers(kept):
    """Return the logits of the first layers alone."""
    off = {("decoder", layer) for layer in range(kept, layers)}
    with torch.no_grad(), intervene(model, Interventions(layers_off=off)):
        return model(**inputs).logits


# %% tags=["check"]
with torch.no_grad():
    full = model(**inputs, output_hidden_states=True)
    for kept, state in enumerate(full.decoder_hidden_states[:-1]):
        expected = model.lm_head(model.model.decoder.norm(state))
        assert first_layers(kept).shape == expected.shape, (
            f"the shape must be {tuple(expected.shape)}"
        )
        assert torch.allclose(first_layers(kept), expected, atol=1e-3), (
            f"not the logits of the first {kept} layers"
        )
    assert torch.allclose(first_layers(layers), full.logits, atol=1e-3), (
        "with all layers, nothing must change"
    )

# %% [markdown]
# The most probable next token at each position, after more and more layers. The last line is the translation.

# %%
for kept in range(layers + 1):
    print(
        f"after {kept} of {layers}:",
        words_of(first_layers(kept).argmax(dim=-1), tokenizer)[0],
    )

# %% [markdown]
# This way of looking at a model is called the *logit lens*; the explorer has it too.
#
# ## 5. Does a head matter?
#
# To test a claim about a head, switch it off and see what changes. The results of all heads, side by side, are multiplied by
# $W^O$. So a head is off if its columns of the stored matrix are 0.
#
# ### Exercise 3: a head
#
# Write `without_head(layer, head)`, which returns the logits for `inputs` with one head of the decoder's cross-attention
# switched off, and leaves the model as it was. Layer and head count from 1.
# `model.model.decoder.layers[layer - 1].cross_attn.o_proj.weight` has the shape (d_model, heads · d_v). The columns of a head
# are next to each other.


# %% tags=["exercise"]
def without_head(layer, head):
    """Return the logits without one head."""
    with torch.no_grad():
        return model(**inputs).logits  # your code


# %% tags=["wrong"]
def without_head(layer, head):
    """Switch off another head."""
    with (
        torch.no_grad(),
        intervene(model, Interventions(heads_off={("cross", layer - 1, head % heads)})),
    ):
        return model(**inputs).logits


# %% tags=["wrong"]
def without_head(layer, head):
    """Switch a head of self-attention off."""
    with (
        torch.no_grad(),
        intervene(model, Interventions(heads_off={("decoder", layer - 1, head - 1)})),
    ):
        return model(**inputs).logits


# %% tags=["solution"]
def without_head(layer, head):
    """Return the logits without one head."""
    weight, d_v = (
        model.model.decoder.layers[layer - 1].cross_attn.o_proj.weight,
        model.config.d_v,
    )
    kept = weight.detach().clone()
    with torch.no_grad():
        weight[:, (head - 1) * d_v : head * d_v] = 0
        logits = model(**inputs).logits
        weight.copy_(kept)
    return logits


# %% tags=["check"]
with torch.no_grad():
    before = model(**inputs).logits
    for layer, head in ((1, 1), (layers, heads)):
        given = without_head(layer, head)
        assert torch.equal(model(**inputs).logits, before), (
            "the model must be as it was"
        )
        with intervene(
            model, Interventions(heads_off={("cross", layer - 1, head - 1)})
        ):
            expected = model(**inputs).logits
        assert given.shape == before.shape, f"the shape must be {tuple(before.shape)}"
        assert torch.allclose(given, expected, atol=1e-3), (
            f"layer {layer}, head {head}: not the logits without this head"
        )

# %% [markdown]
# How much log-probability does the translation lose without each head? A dark red square is a head that the translation
# depends on; blue means that the translation becomes more probable without it.


# %%
def log_probability(logits):
    """Return the mean log-probability of the tokens of the translation."""
    return logits.log_softmax(dim=-1)[0].gather(-1, output[0, 1:, None]).mean().item()


with torch.no_grad():
    usual = log_probability(model(**inputs).logits)
losses = [
    [usual - log_probability(without_head(layer, head)) for head in range(1, heads + 1)]
    for layer in range(1, layers + 1)
]
limit = max(abs(loss) for row in losses for loss in row)
plt.figure(figsize=(6, 3))
plt.imshow(
    losses,
    cmap="RdBu_r",
    vmin=-limit,
    vmax=limit,
    extent=(0.5, heads + 0.5, layers + 0.5, 0.5),
)
plt.yticks(range(1, layers + 1))
plt.xlabel("head")
plt.ylabel("layer")
plt.colorbar(label="lost log-probability")
plt.show()

# %% [markdown]
# One sentence proves little. Here are three, and the heads of cross-attention without which their translation changes. A head that
# is not listed can be removed without changing the words, often because another head does nearly the same.

# %%
for text in (
    sentence,
    "My brother lives in a small house near the river.",
    "She told me that she wanted to learn French.",
):
    usual = translate([text], model, tokenizer)[0]
    print(f"\n{text} -> {usual}")
    for layer in range(layers):
        for head in range(heads):
            with intervene(model, Interventions(heads_off={("cross", layer, head)})):
                other = translate([text], model, tokenizer)[0]
            if other != usual:
                print(f"  without head {head + 1} of layer {layer + 1}: {other}")

# %% [markdown]
# ## 6. Words that are alike
#
# The embedding matrix has a row for each token, learned along with everything else. Tokens that are used in similar ways end up
# pointing in similar directions. The cosine of the angle between two directions measures this: it is 1 for the same direction
# and 0 for a right angle.

# %%
embeddings = model.get_input_embeddings().weight.detach()


def rows(word):
    """Return the rows of the embedding matrix for a word inside a sentence (tokens, d_model)."""
    return embeddings[tokenizer(word, add_special_tokens=False)["input_ids"]]


# %% [markdown]
# ### Exercise 4: similar words
#
# Write `similarity(first, second)`, which returns the cosine between the embeddings of two words as a float: their dot product,
# divided by the product of their lengths. If a word has several tokens, take the mean of its `rows`.


# %% tags=["exercise"]
def similarity(first, second):
    """Return the cosine between two words."""
    return 2.0  # your code


# %% tags=["wrong"]
def similarity(first, second):
    """Return 1 for every pair."""
    return 1.0


# %% tags=["wrong"]
def similarity(first, second):
    """Return the dot product."""
    return (rows(first).mean(dim=0) @ rows(second).mean(dim=0)).item()


# %% tags=["solution"]
def similarity(first, second):
    """Return the cosine between two words."""
    first, second = rows(first).mean(dim=0), rows(second).mean(dim=0)
    return (first @ second / (first.norm() * second.norm())).item()


# %% tags=["check"]
assert abs(similarity("three", "three") - 1) < 1e-5, "a word and itself: 1"
for pair in (("three", "two"), ("travel", "Monday"), ("incomprehensible", "house")):
    one, other = (
        torch.nn.functional.normalize(rows(word).mean(dim=0), dim=0) for word in pair
    )
    distance = (
        (one - other).square().sum().item()
    )  # of two vectors of length 1: 2 - 2 cos
    assert abs(similarity(*pair) - (1 - distance / 2)) < 1e-4, f"{pair}: not the cosine"

# %% [markdown]
# Pairs that are alike, and pairs that are not:

# %%
for pair in (
    ("three", "four"),
    ("boy", "girl"),
    ("Monday", "Tuesday"),
    ("three", "girl"),
    ("Monday", "four"),
):
    print(f"{pair[0]:>8} {pair[1]:<8} {similarity(*pair):.2f}")

# %% [markdown]
# And as a map: of all directions, it shows the two in which these words differ most (their principal components).

# %%
some = "one two three four five Monday Tuesday Friday January May boy girl man woman to from in on".split()
points = torch.stack([rows(word).mean(dim=0) for word in some])
points = points - points.mean(dim=0)
points = points @ torch.linalg.svd(points, full_matrices=False).Vh[:2].T
plt.figure(figsize=(7, 5))
plt.scatter(*points.T)
for word, point in zip(some, points.tolist(), strict=True):
    plt.annotate(word, point)
plt.show()

# %% [markdown]
# **Go on:** `vanilla-transformer walk --model checkpoints/en-es --text "I like to travel."` writes every equation of the model with
# its numbers, and [build it yourself](build_it_yourself.ipynb) loads this translator into classes of your own.
