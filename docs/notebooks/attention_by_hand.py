# %% [markdown]
# # Attention by hand
#
# You will compute Equation 1 of [Attention Is All You Need](https://arxiv.org/abs/1706.03762) for a sentence of three words,
# number by number, and then find the same numbers in a real model. You need to know what a matrix product is, and a
# little Python. Everything runs in seconds.
#
# **By the end you will be able to** say in your own words what queries, keys and values are; compute attention weights from
# them; explain the square root; and mask what must not be seen.

# %%
import math

import torch


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
# the query of "Today" and the key of "is":

# %%
score = sum(q * k for q, k in zip(Q[0], K[1], strict=True))
print(f"{score:.3f}")  # 0.829

# %% [markdown]
# All nine scores at once are a single matrix product: the row says who asks, the column who is asked.

# %%
S = Q @ K.T
S

# %% [markdown]
# ### Exercise 1
#
# Which word fits the question of "sunday" best, and which one least? Write down the two words, `best` and `least`.

# %% tags=["exercise"]
best, least = None, None  # your answer

# %% tags=["solution"]
best, least = words[S[2].argmax()], words[S[2].argmin()]

# %% tags=["check"]
assert (best, least) == ("sunday", "Today"), "look at the last row of S: the largest and the smallest number"

# %% [markdown]
# ## 4. Why divide by $\sqrt{d_k}$?
#
# The dot product of long vectors is a sum of many terms, so it is larger by chance alone. Let us see by how much.

# %%
for d_k in (4, 16, 64, 256):
    torch.manual_seed(0)
    q, k = torch.randn(2, 10_000, d_k)
    spread = (q * k).sum(dim=-1).std()
    print(f"d_k = {d_k:3}: scores spread by {spread:5.1f}, the square root of d_k is {math.sqrt(d_k):4.1f}")

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
# ### Exercise 2
#
# Write the softmax of one row yourself, with `torch.exp` and `sum`.


# %% tags=["exercise"]
def softmax(row):
    """Return weights that sum to 1, from the scores of one row."""
    return row  # your code


# %% tags=["solution"]
def softmax(row):
    """Return weights that sum to 1, from the scores of one row."""
    powers = torch.exp(row)
    return powers / powers.sum()


# %% tags=["check"]
torch.testing.assert_close(softmax(scaled[0]), scaled[0].softmax(dim=0))
assert abs(softmax(scaled[1]).sum() - 1) < 1e-6, "the shares of a row must sum to 1"

# %%
A = scaled.softmax(dim=-1)  # PyTorch applies softmax to each row
A

# %% [markdown]
# Row by row: "Today" takes 22 % of itself, 43 % of "is" and 36 % of "sunday".
#
# ## 6. The result: a mixture of values

# %%
head = A @ V
head

# %% [markdown]
# That is the whole of Equation 1: $\mathrm{softmax}(Q K^\top / \sqrt{d_k})\, V$.
#
# ## 7. The same in a real model
#
# The project's own modules must give the same numbers when they hold these matrices. `record` runs the model and writes down
# every step.

# %%
from vanilla_transformer.inside import record
from vanilla_transformer.inside.worked_examples import EXAMPLES


example = EXAMPLES["today"]
steps = {step.name: step for step in record(example.model(), example.inputs(), head=0)}
torch.testing.assert_close(steps["weights"].tensor[0], A)
torch.testing.assert_close(steps["heads"].tensor[0], head)
print("The model's line:", steps["weights"].source)

# %% [markdown]
# ## 8. What must not be seen
#
# A decoder writes from left to right, so a word must not look at those after it. We add $-\infty$ to their scores *before* the
# softmax: $e^{-\infty} = 0$, and the other weights still sum to 1.
#
# ### Exercise 3
#
# Compute `masked`, the scaled scores with $-\infty$ above the diagonal. `torch.triu(..., diagonal=1)` keeps what is above it.

# %% tags=["exercise"]
masked = scaled  # your code

# %% tags=["solution"]
masked = scaled.masked_fill(torch.triu(torch.ones(3, 3, dtype=torch.bool), diagonal=1), -math.inf)

# %% tags=["check"]
assert masked[0].tolist()[1:] == [-math.inf, -math.inf], "the first word must see itself only"
assert masked[2].isfinite().all(), "the last word sees all of them"
torch.testing.assert_close(masked.softmax(dim=-1)[0], torch.tensor([1.0, 0.0, 0.0]))

# %%
masked.softmax(dim=-1)

# %% [markdown]
# ### Exercise 4
#
# Why not multiply the weights by a matrix of zeros and ones *after* the softmax? Compute `sums`, the sums of the rows that this
# would give, and say what is wrong with them.

# %% tags=["exercise"]
sums = None  # your code

# %% tags=["solution"]
sums = (scaled.softmax(dim=-1) * torch.tril(torch.ones(3, 3))).sum(dim=-1)

# %% tags=["check"]
assert sums is not None and sums[0] < 0.3, "the first row has lost more than two thirds of its weight"
assert abs(sums[2] - 1) < 1e-6

# %% [markdown]
# The rows no longer sum to 1, so early words would get smaller results than late ones.
#
# **Go on** with [the walk-through](../walkthrough.md), or [look inside a trained model](look_inside.ipynb).
