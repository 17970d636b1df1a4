# %% [markdown]
# # Attention by hand
#
# You will compute Equation 1 of [Attention Is All You Need](https://arxiv.org/abs/1706.03762) for a sentence of three words,
# number by number, and then find the same numbers in a real model. You need to know what a matrix product is, and a
# little Python. Everything runs in seconds.
#
# **By the end you will be able to** say in your own words what queries, keys and values are; compute attention weights from
# them; explain the square root; put two heads together; and mask what must not be seen.

# %%
import math

import torch
from matplotlib import pyplot as plt


torch.set_printoptions(precision=3, sci_mode=False)

# %% [markdown]
# ## 1. Three words, three vectors
#
# To a model, a word is a vector: a list of numbers. Ours have four numbers each and are as simple as can be: the first word
# is $(1, 0, 0, 0)$, the second $(0, 1, 0, 0)$, the third $(0, 0, 1, 0)$. Stacked, one row per word, they form the matrix $X$.

# %%
words = ["Today", "is", "sunday"]
X = torch.eye(4)[:3]
X

# %% [markdown]
# ## 2. Queries, keys and values
#
# Think of a library. You come with a question (the **query**). Every book has a label on its spine (the **key**) and
# contents (the **value**). You compare your question with every label, and leave with a mixture of the books: mostly of those
# whose labels fit best.
#
# In attention, each word is both a visitor *and* a book. Three matrices turn the word's one vector into these three.
# A model learns them; here we take the ones from a published example.

# %%
from vanilla_transformer.inside.worked_examples import TODAY_W_K, TODAY_W_Q, TODAY_W_V


W_Q, W_K, W_V = map(torch.tensor, (TODAY_W_Q, TODAY_W_K, TODAY_W_V))
Q, K, V = X @ W_Q, X @ W_K, X @ W_V
Q

# %% [markdown]
# $X$ simply picks rows: the query of "Today" is the first row of $W_Q$. (With real word vectors it is a mixture of all rows.)
#
# ## 3. Scores: how well does a question fit a label?
#
# The dot product of two vectors is large when they point the same way. The score of "Today" for "is" is the dot product of
# the query of "Today" and the key of "is". (Python counts from 0, so `Q[0]` is the first row and `K[1]` the second.)

# %%
score = sum(q * k for q, k in zip(Q[0], K[1], strict=True))
print(f"{score:.3f}")  # 0.829

# %% [markdown]
# All nine scores at once are a single matrix product: the row says who asks, the column who is asked.

# %%
S = Q @ K.T
S

# %% [markdown]
# ### Exercise 1: a row of scores
#
# Which word fits the question of "sunday" best, and which one least? Write down the two words, `best` and `least`.

# %% tags=["exercise"]
best, least = None, None  # your answer

# %% tags=["wrong"]
best, least = "Today", "sunday"

# %% tags=["wrong"]
best, least = "sunday", "is"

# %% tags=["solution"]
best, least = words[S[2].argmax()], words[S[2].argmin()]

# %% tags=["check"]
order = sorted(words, key=lambda word: Q[2] @ K[words.index(word)])
assert (best, least) == (order[2], order[0]), (
    "look at the last row of S: the largest and the smallest number"
)

# %% [markdown]
# ## 4. Why divide by a square root?
#
# The dot product of long vectors is a sum of many terms, so it is larger by chance alone. Let us see by how much.

# %%
for d_k in (4, 16, 64, 256):
    torch.manual_seed(0)
    q, k = torch.randn(2, 10_000, d_k)
    spread = (q * k).sum(dim=-1).std()
    print(
        f"d_k = {d_k:3}: scores spread by {spread:5.1f}, the square root of d_k is {math.sqrt(d_k):4.1f}"
    )

# %% [markdown]
# The spread (the standard deviation) grows with $\sqrt{d_k}$. Dividing by it gives scores of the same size at any width.
# Otherwise the softmax, which comes next, would put nearly all the weight on one word, and the model would learn slowly.

# %%
d_k = K.shape[-1]
scaled = S / math.sqrt(d_k)
scaled

# %% [markdown]
# ## 5. Softmax: from scores to shares
#
# We want shares that are positive and sum to 1. The softmax raises $e$ to the power of each score, which makes it positive,
# and divides by the sum.

# %% [markdown]
# ### Exercise 2: softmax
#
# Write the softmax of one row yourself, with `torch.exp` and `sum`.


# %% tags=["exercise"]
def softmax(row):
    """Return weights that sum to 1, from the scores of one row."""
    return row  # your code


# %% tags=["wrong"]
def softmax(row):
    """Divide by the sum, without the exponential."""
    return row / row.sum()


# %% tags=["wrong"]
def softmax(row):
    """Return equal shares."""
    return torch.ones(3) / 3


# %% tags=["solution"]
def softmax(row):
    """Return weights that sum to 1, from the scores of one row."""
    powers = torch.exp(row)
    return powers / powers.sum()


# %% tags=["check"]
for row in scaled:
    assert abs(softmax(row).sum() - 1) < 1e-6, "the shares of a row must sum to 1"
    assert torch.allclose(softmax(row), row.softmax(dim=0)), (
        "PyTorch's softmax gives other shares"
    )

# %%
A = scaled.softmax(dim=-1)  # PyTorch applies softmax to each row
A

# %% [markdown]
# Row by row: "Today" takes most from "is" and least from itself. A heat map shows the same: the darker a square, the larger the
# share.


# %%
def show(weights, rows, columns):
    """Draw attention weights as a heat map."""
    plt.figure(figsize=(4, 3))
    plt.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    plt.xticks(range(len(columns)), columns)
    plt.yticks(range(len(rows)), rows)
    plt.xlabel("who is asked (key)")
    plt.ylabel("who asks (query)")
    for i, row in enumerate(weights.tolist()):
        for j, share in enumerate(row):
            plt.text(
                j,
                i,
                f"{share:.1%}",
                ha="center",
                va="center",
                color="white" if share > 0.5 else "black",
            )
    plt.show()


show(A, words, words)

# %% [markdown]
# ## 6. The result: a mixture of values

# %%
head_1 = A @ V
head_1

# %% [markdown]
# That is the whole of Equation 1: $\mathrm{softmax}(Q K^\top / \sqrt{d_k})\, V$.
#
# ## 7. Two heads
#
# One set of weights per word is not much: "sunday" may want to know its verb and its day at the same time. So a model has several
# heads. Each one computes Equation 1 with three matrices of its own. The published example prints the result of a second head, and
# a matrix $W^O$ (8 × 4) that brings both back to four numbers per word.

# %%
from vanilla_transformer.inside.worked_examples import TODAY_HEAD_2, TODAY_W_O


head_2, W_O = torch.tensor(TODAY_HEAD_2), torch.tensor(TODAY_W_O)
print(*map(tuple, (head_1.shape, head_2.shape, W_O.shape)))  # (3, 4) (3, 4) (8, 4)

# %% [markdown]
# ### Exercise 3: heads
#
# Compute `result`, the output of multi-head attention: put the heads side by side, so that each word has eight numbers, and
# multiply by $W^O$. `torch.cat([first, second], dim=-1)` puts two matrices side by side.

# %% tags=["exercise"]
result = None  # your code

# %% tags=["wrong"]
result = torch.cat([head_2, head_1], dim=-1) @ W_O

# %% tags=["wrong"]
result = (head_1 + head_2) @ W_O[:4]

# %% tags=["solution"]
result = torch.cat([head_1, head_2], dim=-1) @ W_O

# %% tags=["check"]
assert result is not None and result.shape == (3, 4), "three words, four numbers each"
assert torch.allclose(result, head_1 @ W_O[:4] + head_2 @ W_O[4:], atol=1e-6), (
    "head 1 belongs to the first rows of W_O"
)

# %% [markdown]
# The check computes the same in another way: each head has its own four rows of $W^O$, and the results are added.
#
# ## 8. Add and norm
#
# The result is a correction. It is added to the word's vector, and the sum is normalised: each row gets mean 0 and variance 1. That
# keeps the numbers at the same size through many layers.
#
# ### Exercise 4: a layer's norm
#
# Write `layer_norm(rows)`: subtract from each row its mean, and divide by the square root of its variance plus $10^{-6}$. The
# variance is the mean of the squared differences from the mean.


# %% tags=["exercise"]
def layer_norm(rows):
    """Bring each row to mean 0 and variance 1."""
    return rows  # your code


# %% tags=["wrong"]
def layer_norm(rows):
    """Normalise columns instead of rows."""
    return (rows - rows.mean(dim=0)) / (rows.var(dim=0, correction=0) + 1e-6).sqrt()


# %% tags=["wrong"]
def layer_norm(rows):
    """Divide the sum of squares by n - 1."""
    return (rows - rows.mean(dim=-1, keepdim=True)) / (
        rows.var(dim=-1, keepdim=True) + 1e-6
    ).sqrt()


# %% tags=["solution"]
def layer_norm(rows):
    """Bring each row to mean 0 and variance 1."""
    difference = rows - rows.mean(dim=-1, keepdim=True)
    variance = (difference**2).mean(dim=-1, keepdim=True)
    return difference / (variance + 1e-6).sqrt()


# %% tags=["check"]
rows = torch.arange(12.0).reshape(3, 4) ** 2
assert layer_norm(rows).mean(dim=-1).abs().max() < 1e-5, (
    "the mean of each row must be 0"
)
assert torch.allclose(
    layer_norm(rows), torch.nn.functional.layer_norm(rows, (4,), eps=1e-6)
), "the variance must be 1"

# %%
X + head_1  # before the norm, if there were only head 1

# %% [markdown]
# ## 9. The same in a real model
#
# The project's own modules must give the same numbers when they hold these matrices. `record` runs the model and writes down
# every step.

# %%
from vanilla_transformer.inside import record
from vanilla_transformer.inside.worked_examples import EXAMPLES


example = EXAMPLES["today"]
steps = {step.name: step for step in record(example.model(), example.inputs(), head=0)}
torch.testing.assert_close(steps["weights"].tensor[0], A)
torch.testing.assert_close(steps["heads"].tensor[0], head_1)
print("The model's line:", steps["weights"].source)
steps["output projection"].tensor[0]  # the same as your result of exercise 3

# %% [markdown]
# ## 10. What must not be seen
#
# A decoder writes from left to right, so a word must not look at those after it. We add $-\infty$ to their scores *before* the
# softmax: $e^{-\infty} = 0$, and the other weights still sum to 1.
#
# ### Exercise 5: a mask
#
# Compute `masked`, the scaled scores with $-\infty$ above the diagonal. `torch.triu(..., diagonal=1)` keeps what is above it.

# %% tags=["exercise"]
masked = scaled  # your code

# %% tags=["wrong"]
masked = scaled.masked_fill(torch.triu(torch.ones(3, 3, dtype=torch.bool)), -math.inf)

# %% tags=["wrong"]
masked = scaled.tril()

# %% tags=["solution"]
masked = scaled.masked_fill(
    torch.triu(torch.ones(3, 3, dtype=torch.bool), diagonal=1), -math.inf
)

# %% tags=["check"]
assert masked[0].tolist()[1:] == [-math.inf, -math.inf], (
    "the first word must see itself only"
)
for i in range(3):
    assert torch.equal(masked[i, : i + 1], scaled[i, : i + 1]), (
        f"word {i + 1} must see itself and all words before it"
    )
    assert (masked[i, i + 1 :] == -math.inf).all(), (
        f"word {i + 1} must not see later words"
    )

# %%
show(masked.softmax(dim=-1), words, words)

# %% [markdown]
# ### Exercise 6
#
# Why not multiply the weights by a matrix of zeros and ones *after* the softmax? Compute `sums`, the sums of the rows that this
# would give, and say what is wrong with them.

# %% tags=["exercise"]
sums = None  # your code

# %% tags=["wrong"]
sums = torch.tensor([0.2, 0.5, 1.0])

# %% tags=["wrong"]
sums = masked.softmax(dim=-1).sum(dim=-1)

# %% tags=["solution"]
sums = (scaled.softmax(dim=-1) * torch.tril(torch.ones(3, 3))).sum(dim=-1)

# %% tags=["check"]
assert sums is not None and torch.allclose(sums, 1 - A.triu(diagonal=1).sum(dim=-1)), (
    "1, less what was multiplied by zero"
)

# %% [markdown]
# The rows no longer sum to 1, so early words would get smaller results than late ones.
#
# **Go on:** [build it yourself](build_it_yourself.ipynb) turns this into a whole model, and
# [look inside a trained model](look_inside.ipynb) shows real heads at work.
