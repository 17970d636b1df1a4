# %% [markdown]
# # Build it yourself
#
# You will write the whole Transformer in about 150 lines of plain PyTorch, class by class. After each class, you give it the
# weights of this project's own class and compare the two results. Then you train your model on a toy task, compute one
# training step by hand, and load a trained translator into your classes. Everything takes about a minute.
#
# You need to know what attention is: [attention by hand](attention_by_hand.ipynb) shows it with numbers. A little PyTorch
# helps: what a tensor, a module and a gradient are.
#
# **By the end you will be able to** write each part of the model from memory; check your own implementation against another
# one; and explain what happens in one training step.

# %%
import math
import os

import torch
from matplotlib import pyplot as plt
from torch import nn
from transformers import AutoTokenizer

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
)
from vanilla_transformer.decoding import paper_decoding
from vanilla_transformer.loading import load_model


torch.set_printoptions(precision=3, sci_mode=False)

# %% [markdown]
# ## 1. Something to compare with
#
# This is a small model of the project with random weights. It is the reference for all your classes. Its input is a batch of
# sequences; a tensor of them has the shape (batch, length, d_model): two sequences of seven tokens, and each token is a vector
# of 32 numbers.

# %%
torch.manual_seed(0)
small = {
    "d_model": 32,
    "num_heads": 4,
    "d_ff": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
}
reference = VanillaTransformerForConditionalGeneration(
    VanillaTransformerConfig(vocab_size=50, **small)
).eval()
x, memory = torch.randn(2, 7, 32), torch.randn(2, 5, 32)

# %% [markdown]
# Your classes have names of their own, so this table translates your names into the project's. `copy_weights` uses it to give
# your module the weights of the reference. `compare` stops the notebook if two results differ by 1e-5 or more.

# %%
NAMES = {
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "output": "o_proj",
    "wide": "fc1",
    "narrow": "fc2",
    "attention": "self_attn",
    "attention_norm": "self_attn_add_norm",
    "cross_attention": "cross_attn",
    "cross_attention_norm": "cross_attn_add_norm",
    "network": "feed_forward",
    "network_norm": "feed_forward_add_norm",
    "embedding": "model.encoder.embed_tokens",
    "encoder": "model.encoder",
    "decoder": "model.decoder",
}


def copy_weights(mine, theirs):
    """Copy the weights of a module of the project into mine."""
    weights = theirs.state_dict()
    names = {
        name: ".".join(NAMES.get(part, part) for part in name.split("."))
        for name in mine.state_dict()
    }
    mine.load_state_dict(
        {name: weights[their_name] for name, their_name in names.items()}
    )
    return mine.eval()


def compare(mine, theirs):
    """Print the largest difference between two tensors, which must be below 1e-5."""
    assert mine.shape == theirs.shape, (
        f"the shape is {tuple(mine.shape)}, not {tuple(theirs.shape)}"
    )
    difference = (mine - theirs).abs().max().item()
    assert difference < 1e-5, f"the largest difference is {difference:.1e}"
    print(f"shape {tuple(mine.shape)}, largest difference {difference:.1e}")


# %% [markdown]
# ## 2. Scaled dot-product attention
#
# Each position sends out a query and compares it with the keys of all positions. The softmax turns the scores into weights that
# sum to 1. The result is the weighted mean of the values:
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V$$
#
# A mask says which keys a query may see: True where it may. A forbidden key gets the score $-\infty$, so its weight is 0.


# %%
def attend(query, key, value, mask=None):
    """Compute scaled dot-product attention: (..., queries, d_k), (..., keys, d_k), (..., keys, d_v)."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1) @ value


# %%
from vanilla_transformer.modeling_vanilla_transformer import eager_attention_forward


q, k, v = torch.randn(3, 2, 4, 7, 8)  # each (batch, heads, length, d_k)
causal = torch.ones(7, 7).tril().bool()  # see itself and earlier positions
theirs, _ = eager_attention_forward(
    reference, q, k, v, causal[None, None], scaling=8**-0.5
)
compare(attend(q, k, v, causal).transpose(1, 2), theirs)

# %% [markdown]
# ## 3. Multi-head attention
#
# Several heads attend at the same time, each with a narrower query, key and value of its own. One matrix computes the queries of
# all heads: with d_model = 32 and 4 heads, columns 1 to 8 belong to head 1, columns 9 to 16 to head 2, and so on.
# `split` cuts the columns into heads. At the end, the results of the heads are put side by side again and multiplied by $W^O$.
#
# Queries come from `x`. Keys and values come from `source`: `x` itself in self-attention, the encoder's output in
# cross-attention.


# %%
class MultiHeadAttention(nn.Module):
    """Let every position of one sequence attend to the positions of another, with several heads."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)

    def split(self, x):
        """Cut features into heads: (batch, length, d_model) -> (batch, heads, length, d_model / heads)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, source, mask=None):
        """Attend from `x` to `source`."""
        heads = attend(
            self.split(self.query(x)),
            self.split(self.key(source)),
            self.split(self.value(source)),
            mask,
        )
        return self.output(heads.transpose(1, 2).flatten(2))


# %%
encoder_layer = reference.model.encoder.layers[0]
mine = copy_weights(MultiHeadAttention(32, heads=4), encoder_layer.self_attn)
compare(mine(x, x), encoder_layer.self_attn(x, x, None)[0])

# %% [markdown]
# ### Exercise 1: a head
#
# Write `one_head(attention, x, head)`, which returns the result of a single head of self-attention before $W^O$, with the shape
# (batch, length, d_model / heads). Heads count from 1. Cut the rows of this head out of `attention.query.weight`, and so on
# (PyTorch stores the transpose of $W^Q$, so the columns of a head are rows here). Then use `attend`.


# %% tags=["exercise"]
def one_head(attention, x, head):
    """Return the result of one head, counted from 1."""
    return x  # your code


# %% tags=["wrong"]
def one_head(attention, x, head):
    """Count heads from 0."""
    rows = slice(head * 8 % 32, head * 8 % 32 + 8)
    return attend(
        *(
            x @ part.weight[rows].T
            for part in (attention.query, attention.key, attention.value)
        )
    )


# %% tags=["wrong"]
def one_head(attention, x, head):
    """Take columns of the stored matrix, which is the transpose."""
    columns = slice(8 * head - 8, 8 * head)
    return attend(
        *(
            x @ part.weight[:, columns]
            for part in (attention.query, attention.key, attention.value)
        )
    )


# %% tags=["solution"]
def one_head(attention, x, head):
    """Return the result of one head, counted from 1."""
    width = x.shape[-1] // attention.heads
    rows = slice((head - 1) * width, head * width)
    query, key, value = (
        x @ part.weight[rows].T
        for part in (attention.query, attention.key, attention.value)
    )
    return attend(query, key, value)


# %% tags=["check"]
together = torch.cat([one_head(mine, x, head) for head in range(1, 5)], dim=-1)
assert together.shape == x.shape, "each head must return (2, 7, 8)"
compare(mine.output(together), encoder_layer.self_attn(x, x, None)[0])

# %% [markdown]
# ## 4. The feed-forward network
#
# Attention moves information between positions. The feed-forward network then works on each position alone: it makes the vector
# wider, sets negative numbers to 0 (this is the ReLU), and makes it narrow again.
#
# $$\mathrm{FFN}(x) = \max(0,\ x W_1 + b_1)\, W_2 + b_2$$


# %%
class FeedForward(nn.Module):
    """Transform each position on its own."""

    def __init__(self, d_model, d_ff):
        super().__init__()
        self.wide = nn.Linear(d_model, d_ff)
        self.narrow = nn.Linear(d_ff, d_model)

    def forward(self, x):
        """Transform `x` (batch, length, d_model)."""
        return self.narrow(self.wide(x).relu())


# %%
mine = copy_weights(FeedForward(32, 64), encoder_layer.feed_forward)
compare(mine(x), encoder_layer.feed_forward(x))

# %% [markdown]
# ## 5. Add and norm
#
# Around each of these two parts, called sub-layers, there is a shortcut: the input is added to the result. So a layer only has to
# learn a correction, and gradients have a direct path. LayerNorm then brings each vector to mean 0 and variance 1, times a
# learned scale, plus a learned shift. Dropout sets random numbers to 0 during training, so that the model does not rely on a few
# of them.
#
# There are two orders. The paper normalises after the sum (*post-norm*). Many later models normalise the input of the sub-layer
# (*pre-norm*), and once more after the last layer. Your class can do both.


# %%
class AddNorm(nn.Module):
    """Wrap a sub-layer in dropout, a shortcut and layer normalisation."""

    def __init__(self, d_model, norm_position, dropout):
        super().__init__()
        self.norm = nn.LayerNorm(d_model, eps=1e-6)
        self.is_pre = norm_position == "pre"
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, sublayer):
        """Apply the function `sublayer` to `x`."""
        if self.is_pre:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


# %%
mine = copy_weights(AddNorm(32, "post", dropout=0), encoder_layer.self_attn_add_norm)
compare(mine(x, torch.tanh), encoder_layer.self_attn_add_norm(x, torch.tanh))

# %% [markdown]
# ## 6. An encoder layer
#
# Self-attention, add and norm; feed-forward, add and norm.


# %%
class EncoderLayer(nn.Module):
    """Apply self-attention and the feed-forward network."""

    def __init__(self, d_model, heads, d_ff, norm_position="post", dropout=0.0):
        super().__init__()
        self.attention = MultiHeadAttention(d_model, heads)
        self.attention_norm = AddNorm(d_model, norm_position, dropout)
        self.network = FeedForward(d_model, d_ff)
        self.network_norm = AddNorm(d_model, norm_position, dropout)

    def forward(self, x, mask=None):
        """Transform `x` (batch, length, d_model)."""
        x = self.attention_norm(x, lambda x: self.attention(x, x, mask))
        return self.network_norm(x, self.network)


# %%
mine = copy_weights(EncoderLayer(32, heads=4, d_ff=64), encoder_layer)
compare(mine(x), encoder_layer(x, None))

# %% [markdown]
# ### Exercise 2: a layer
#
# A language model such as GPT has no encoder. Its layers are your `EncoderLayer` with one change: a position must not see later
# ones. Write `language_layer(layer, x)`, which applies an `EncoderLayer` in this way, for any length of `x`.


# %% tags=["exercise"]
def language_layer(layer, x):
    """Apply an encoder layer as a layer of a language model."""
    return x  # your code


# %% tags=["wrong"]
def language_layer(layer, x):
    """See later positions."""
    return layer(x)


# %% tags=["wrong"]
def language_layer(layer, x):
    """Hide a position from itself, except for the first."""
    mask = torch.ones(x.shape[1], x.shape[1]).tril(-1).bool()
    mask[0, 0] = True
    return layer(x, mask)


# %% tags=["solution"]
def language_layer(layer, x):
    """Apply an encoder layer as a layer of a language model."""
    return layer(x, torch.ones(x.shape[1], x.shape[1]).tril().bool())


# %% tags=["check"]
from vanilla_transformer import (
    VanillaTransformerDecoderConfig,
    VanillaTransformerDecoderModel,
)

for length in (7, 4):
    names = {
        "d_model": 32,
        "num_heads": 4,
        "d_ff": 64,
        "num_layers": 1,
        "scale_embedding": False,
    }
    language_model = VanillaTransformerDecoderModel(
        VanillaTransformerDecoderConfig(vocab_size=50, **names)
    ).eval()
    layer = copy_weights(EncoderLayer(32, heads=4, d_ff=64), language_model.layers[0])
    start = language_model.add_positions(x[:, :length], torch.arange(length)[None])
    compare(
        language_layer(layer, start),
        language_model(inputs_embeds=x[:, :length]).last_hidden_state,
    )

# %% [markdown]
# ## 7. A decoder layer
#
# The decoder has one more sub-layer in between: cross-attention, whose keys and values come from the encoder's output, the
# `memory`. Its self-attention is causal, because the decoder writes from left to right.


# %%
class DecoderLayer(nn.Module):
    """Apply causal self-attention, cross-attention and the feed-forward network."""

    def __init__(self, d_model, heads, d_ff, norm_position="post", dropout=0.0):
        super().__init__()
        self.attention = MultiHeadAttention(d_model, heads)
        self.attention_norm = AddNorm(d_model, norm_position, dropout)
        self.cross_attention = MultiHeadAttention(d_model, heads)
        self.cross_attention_norm = AddNorm(d_model, norm_position, dropout)
        self.network = FeedForward(d_model, d_ff)
        self.network_norm = AddNorm(d_model, norm_position, dropout)

    def forward(self, x, memory, memory_mask=None):
        """Transform `x` (batch, length, d_model)."""
        causal = torch.ones(x.shape[1], x.shape[1]).tril().bool()
        x = self.attention_norm(x, lambda x: self.attention(x, x, causal))
        x = self.cross_attention_norm(
            x, lambda x: self.cross_attention(x, memory, memory_mask)
        )
        return self.network_norm(x, self.network)


# %%
decoder_layer = reference.model.decoder.layers[0]
mine = copy_weights(DecoderLayer(32, heads=4, d_ff=64), decoder_layer)
compare(mine(x, memory), decoder_layer(x, causal[None, None], memory, None))

# %% [markdown]
# ## 8. Embeddings and positions
#
# A token is a number, its id. The embedding is a matrix with one row per token: the id selects the row. The row is multiplied by
# $\sqrt{d_{model}}$, so that it is about as large as what is added next: the position. Without it, attention could not tell
# "dog bites man" from "man bites dog". The paper uses sines and cosines of different wavelengths:
#
# $$PE_{pos, 2i} = \sin\left(pos / 10000^{2i / d_{model}}\right) \qquad PE_{pos, 2i + 1} = \cos\left(pos / 10000^{2i / d_{model}}\right)$$
#
# In this formula, positions and columns count from 0.


# %%
def positions(length, d_model):
    """Return the positional encodings (length, d_model)."""
    rates = 10000 ** (-torch.arange(0, d_model, 2) / d_model)
    angles = torch.arange(length)[:, None] * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


# %%
from vanilla_transformer.modeling_vanilla_transformer import sinusoids


compare(positions(100, 32), sinusoids(torch.arange(100), 32))
plt.figure(figsize=(8, 2.5))
plt.imshow(
    positions(50, 32).T, cmap="RdBu", aspect="auto", extent=(0.5, 50.5, 32.5, 0.5)
)
plt.xlabel("position")
plt.ylabel("column")
plt.title(
    "Positional encodings: fast waves in the first columns, slow waves in the last"
)
plt.show()

# %% [markdown]
# ## 9. The Transformer
#
# A stack of encoder layers, a stack of decoder layers, and one embedding for everything: source, target, and the output. The
# output layer compares the decoder's vector with the embedding of each token. The dot products are the *logits*; their softmax
# is the probability of each token to come next.
#
# Shorter sentences of a batch are filled up with padding, token 0. The mask keeps everyone from attending to it.


# %%
class Stack(nn.Module):
    """Hold the layers of the encoder or the decoder."""

    def __init__(self, layers, d_model, norm_position):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = (
            nn.LayerNorm(d_model, eps=1e-6) if norm_position == "pre" else nn.Identity()
        )

    def forward(self, x, *others):
        """Apply all layers to `x` (batch, length, d_model)."""
        for layer in self.layers:
            x = layer(x, *others)
        return self.norm(x)


class Transformer(nn.Module):
    """Translate a source sequence into a target sequence."""

    def __init__(
        self,
        vocab_size,
        d_model,
        heads,
        d_ff,
        encoder_layers,
        decoder_layers,
        norm_position="post",
        dropout=0.0,
    ):
        super().__init__()
        sizes = (d_model, heads, d_ff, norm_position, dropout)
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.encoder = Stack(
            [EncoderLayer(*sizes) for _ in range(encoder_layers)],
            d_model,
            norm_position,
        )
        self.decoder = Stack(
            [DecoderLayer(*sizes) for _ in range(decoder_layers)],
            d_model,
            norm_position,
        )
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)

    def embed(self, ids):
        """Return token embeddings with positions: (batch, length) -> (batch, length, d_model)."""
        x = self.embedding(ids)
        d_model = x.shape[-1]
        return self.dropout(x * math.sqrt(d_model) + positions(ids.shape[1], d_model))

    def forward(self, source, target):
        """Return the logits of the token after each target token: (batch, target length, vocab_size)."""
        mask = (source != 0)[:, None, None, :]  # for all heads and all queries
        memory = self.encoder(self.embed(source), mask)
        return self.decoder(self.embed(target), memory, mask) @ self.embedding.weight.T


# %%
source, target = torch.randint(3, 50, (2, 9)), torch.randint(3, 50, (2, 7))
source[1, 6:] = 0  # the second sentence is shorter
mine = copy_weights(
    Transformer(50, 32, heads=4, d_ff=64, encoder_layers=2, decoder_layers=2), reference
)
theirs = reference(
    source, attention_mask=(source != 0).long(), decoder_input_ids=target
).logits
compare(mine(source, target), theirs)
print(f"{sum(parameter.numel() for parameter in mine.parameters()):,} parameters")

# %% [markdown]
# That is the whole model.
#
# ## 10. The copy task
#
# Does it learn? The simplest task: write the source again. Ten "words" (tokens 3 to 12) in random order, token 1 to start,
# token 2 to end. During training, the decoder reads the right target, shifted by one, and predicts the next token at every
# position at once. The loss is the *cross-entropy*: the mean of $-\ln p$, where $p$ is the probability that the model gave
# to the right token.


# %%
def copy_batch(size):
    """Return random sources, and targets with a start token and an end token."""
    source = torch.randint(3, 13, (size, 8))
    start, end = torch.ones(size, 1, dtype=torch.long), torch.full((size, 1), 2)
    return source, torch.cat([start, source, end], dim=1)


def loss_of(model, source, target):
    """Return the cross-entropy of the next tokens."""
    logits = model(source, target[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())


torch.manual_seed(0)
copier = Transformer(13, 64, heads=4, d_ff=128, encoder_layers=1, decoder_layers=1)
optimizer = torch.optim.Adam(copier.parameters(), lr=2e-3, betas=(0.9, 0.98), eps=1e-9)
losses = []
for _ in range(400):
    loss = loss_of(copier, *copy_batch(32))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

plt.figure(figsize=(6, 2.5))
plt.plot(range(1, len(losses) + 1), losses)
plt.xlabel("step")
plt.ylabel("loss")
plt.title("Learning to copy")
plt.show()

# %% [markdown]
# Now let it write. *Greedy search* takes the most probable token, appends it, and asks again, until the end token comes.


# %%
@torch.no_grad()
def greedy_search(model, source, start=1, end=2, longest=50):
    """Return the ids that the model writes for one source (1, length), without the start token."""
    written = [start]
    while written[-1] != end and len(written) <= longest:
        logits = model(source, torch.tensor([written]))
        written.append(logits[0, -1].argmax().item())
    return written[1:]


copier.eval()
source, target = copy_batch(50)
copies = [greedy_search(copier, row[None], longest=9) for row in source]
right = sum(copy == row[1:].tolist() for copy, row in zip(copies, target, strict=True))
print("source:", source[0].tolist())
print("copy:  ", copies[0])
print(f"{right} of 50 copies are right")

# %% [markdown]
# ## 11. One training step by hand
#
# A training step has four parts: forward, loss, backward, update. Here they are in numbers, for one batch of two sentences. We use
# 64-bit numbers, so that small differences can be seen.

# %%
torch.manual_seed(1)
model = Transformer(
    13, 8, heads=2, d_ff=16, encoder_layers=1, decoder_layers=1
).double()
source, target = copy_batch(2)

# forward
logits = model(source, target[:, :-1])
probabilities = logits.softmax(dim=-1)
# loss: the mean of -ln p of the right tokens
right = target[:, 1:, None]
loss = -probabilities.gather(-1, right).log().mean()
print(f"loss {loss:.4f}; PyTorch says {loss_of(model, source, target):.4f}")
print(f"a model that guesses has -ln(1 / 13) = {math.log(13):.4f}")

# %% [markdown]
# **Backward.** The gradient says how the loss changes with each number. For the logits there is a simple formula: the probability,
# minus 1 for the right token, divided by the number of tokens. So the logit of the right token goes up, and all others go down.

# %%
logits.retain_grad()
loss.backward()
by_hand = (probabilities - nn.functional.one_hot(target[:, 1:], 13)) / target[
    :, 1:
].numel()
compare(by_hand, logits.grad)

# %% [markdown]
# From there, the chain rule carries the gradient back through all layers. You can check any weight: make it a little larger and
# a little smaller, and see how the loss changes.

# %%
weight = model.encoder.layers[0].attention.query.weight
with torch.no_grad():
    weight[0, 0] += 1e-5
    more = loss_of(model, source, target)
    weight[0, 0] -= 2e-5
    less = loss_of(model, source, target)
    weight[0, 0] += 1e-5
print(
    f"measured {(more - less) / 2e-5:.8f}, from the chain rule {weight.grad[0, 0]:.8f}"
)

# %% [markdown]
# **Update.** Adam keeps two running means for each weight: $m$ of the gradient $g$, and $v$ of its square. The step goes against $m$,
# and dividing by $\sqrt{v}$ gives all weights steps of a similar size. Both means start at 0, so they are too small at first;
# $t$ is the number of the step, and dividing by $1 - \beta^t$ corrects for it.
#
# $$m \leftarrow \beta_1 m + (1 - \beta_1)\, g \qquad v \leftarrow \beta_2 v + (1 - \beta_2)\, g^2$$
#
# $$w \leftarrow w - \eta\, \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}$$
#
# ### Exercise 3: a step
#
# Write `adam_step(weight, gradient, m, v, t)`, which returns the new weight, the new $m$ and the new $v$.
# The paper uses $\beta_1 = 0.9$, $\beta_2 = 0.98$ and $\epsilon = 10^{-9}$; the learning rate $\eta$ is 0.001 here.


# %% tags=["exercise"]
def adam_step(weight, gradient, m, v, t):
    """Return the new weight, m and v."""
    return weight, m, v  # your code


# %% tags=["wrong"]
def adam_step(weight, gradient, m, v, t):
    """Leave out the correction."""
    m, v = 0.9 * m + 0.1 * gradient, 0.98 * v + 0.02 * gradient**2
    return weight - 0.001 * m / (v.sqrt() + 1e-9), m, v


# %% tags=["wrong"]
def adam_step(weight, gradient, m, v, t):
    """Forget the earlier gradients."""
    m, v = 0.1 * gradient, 0.02 * gradient**2
    return (
        weight - 0.001 * (m / (1 - 0.9**t)) / ((v / (1 - 0.98**t)).sqrt() + 1e-9),
        m,
        v,
    )


# %% tags=["solution"]
def adam_step(weight, gradient, m, v, t):
    """Return the new weight, m and v."""
    m = 0.9 * m + 0.1 * gradient
    v = 0.98 * v + 0.02 * gradient**2
    step = (m / (1 - 0.9**t)) / ((v / (1 - 0.98**t)).sqrt() + 1e-9)
    return weight - 0.001 * step, m, v


# %% tags=["check"]
theirs = nn.Parameter(weight.detach().clone())
optimizer = torch.optim.Adam([theirs], lr=0.001, betas=(0.9, 0.98), eps=1e-9)
mine, m, v = theirs.detach().clone(), torch.zeros_like(weight), torch.zeros_like(weight)
for t in (1, 2, 3):
    theirs.grad = weight.grad * (-2) ** t  # other gradients in each step
    optimizer.step()
    mine, m, v = adam_step(mine, theirs.grad, m, v, t)
    assert (mine - theirs).abs().max() < 1e-9, f"step {t} differs from torch.optim.Adam"

# %% [markdown]
# Now the whole step, for all weights: your formula against PyTorch's optimizer. The loss on this batch goes down.

# %%
before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
torch.optim.Adam(model.parameters(), lr=0.001, betas=(0.9, 0.98), eps=1e-9).step()
differences = []
for name, weight in model.named_parameters():
    zeros = torch.zeros_like(weight)
    by_hand, _, _ = adam_step(before[name], weight.grad, zeros, zeros, t=1)
    differences.append((by_hand - weight).abs().max().item())
print(f"largest difference over all weights: {max(differences):.0e}")
print(f"loss before {loss:.4f}, after {loss_of(model, source, target):.4f}")

# %% [markdown]
# ## 12. A trained translator in your classes
#
# `checkpoints/en-es` translates English into Spanish. Its weights fit into your classes, because these compute the same thing.
# The sizes are in its configuration. (To use a translator of your own, set the environment variable `TRANSLATOR` to its folder.)

# %%
folder = os.environ.get("TRANSLATOR")
if folder is None:
    from vanilla_transformer.loading import shipped_model

    folder = shipped_model("en-es")
theirs, tokenizer = load_model(folder), AutoTokenizer.from_pretrained(folder)
config = theirs.config
mine = Transformer(
    config.vocab_size,
    config.d_model,
    config.num_heads,
    config.d_ff,
    config.encoder_layers,
    config.decoder_layers,
    config.norm_position,
)
copy_weights(mine, theirs)
print(
    f"{config.encoder_layers} + {config.decoder_layers} layers, {config.norm_position}-norm"
)

# %% [markdown]
# The same sentence, once by your classes with your greedy search, once by the project's `generate`:

# %%
for sentence in (
    "I like to travel.",
    "My brother lives in a small house.",
    "What time is it?",
):
    ids = tokenizer(sentence, return_tensors="pt")["input_ids"]
    written = greedy_search(
        mine, ids, config.decoder_start_token_id, config.eos_token_id
    )
    generated = theirs.generate(ids, **paper_decoding(1), max_new_tokens=50)[
        0, 1:
    ].tolist()
    assert written == generated, (written, generated)
    print(
        f"{sentence} -> {tokenizer.decode(written, skip_special_tokens=True)}  ({len(written)} equal tokens)"
    )

# %% [markdown]
# Your model is a translator now. Every token is the same as the project's.
#
# **Go on:** [look inside](look_inside.ipynb) shows what such a model attends to, and
# [train a translator](train_a_translator.ipynb) trains one on your own sentences. The project's model file has a few hundred
# lines more than yours: caches, input checks, other tasks, and the variants of published models.
