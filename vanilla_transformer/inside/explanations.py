"""One sentence for each step of a walk: what the numbers are for."""

from vanilla_transformer.inside.recorder import CROSS_ATTENTION, FEED_FORWARD, Step


SENTENCES = {
    "tokens": "The text is cut into tokens, each of which is a number in the vocabulary.",
    "embeddings": "Each number picks its row of the embedding matrix: the vector that the model has learned for it.",
    "vectors": "The vectors that the example starts from, one row for each word.",
    "positions": "Attention does not see the order of words, so each position gets a pattern of waves of its own.",
    "embedding + position": "The sum says both what a token is and where it stands.",
    "layer input": "What the layers before have made of each token.",
    "encoder output": "What the encoder has made of the source, the same for every layer of the decoder.",
    "queries": "Each position asks for something: its query.",
    "keys": "Each position says what it has to offer: its key.",
    "values": "Each position has something ready to hand over: its value.",
    "scores": "The dot product of a query (row) and a key (column) says how well they match.",
    "scaled scores": "Dividing by the root of the head's width keeps the scores of wide heads from growing too large.",
    "mask": "The mask says which keys a query may look at (■); padding and, in a decoder, the future are hidden.",
    "masked scores": "What must not be seen gets a score of minus infinity.",
    "weights": "The softmax turns each row into weights that sum to 1: where the position looks, and how hard.",
    "heads": "Each position gets the mean of the values, weighted by where it looks.",
    "concatenation": "The results of all heads are put side by side.",
    "output projection": "One more matrix mixes what the heads have found.",
    "residual": "The result is added to what came in, so a layer changes its input rather than replacing it.",
    "layer norm": "Each row is brought to mean 0 and variance 1, then scaled and shifted by learned numbers.",
    "hidden": "The feed-forward network works on each position separately; its first matrix leads into a wider space.",
    "activation": "Negative numbers become 0; without this, the two matrices would amount to a single one.",
    "feed-forward output": "A second matrix leads back to the width of the model.",
    "layer output": "What this layer hands to the next one.",
    "stack output": "What the whole stack says about each position.",
    "logits": "Each position is compared with the embedding of every token: a score for each possible next token.",
    "probabilities": "The softmax turns the scores of a position into probabilities that sum to 1.",
}
SPECIAL = {
    (CROSS_ATTENTION, "queries"): "Each position of the target asks for something in the source: its query.",
    (CROSS_ATTENTION, "keys"): "Each position of the source says what it has to offer: its key.",
    (CROSS_ATTENTION, "values"): "Each position of the source has something ready to hand over: its value.",
    (CROSS_ATTENTION, "mask"): "Only the padding of the source is hidden: everything else in it may be seen.",
    (CROSS_ATTENTION, "weights"): "Where in the source each position of the target looks: which words it translates.",
    (FEED_FORWARD, "residual"): "Here too, the result is added to what came in.",
}


def explanation(step: Step) -> str:
    """The sentence for a step; "" for one that needs none."""
    return SPECIAL.get((step.part, step.name), SENTENCES.get(step.name, ""))
