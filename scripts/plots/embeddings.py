"""Draw a map of trained embeddings (section 3.4 of the paper): words with similar use are close together."""

from functools import cache

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from transformers import AutoTokenizer

from vanilla_transformer.loading import load_model, shipped_model


GROUPS = {
    "numbers": "one two three four five",
    "days and months": "Monday Tuesday Friday Sunday January May",
    "people": "boy man brother mother girl",
    "animals": "dog cat bird horse",
    "verbs": "eat ate drink read write",
    "prepositions": "to from in on at with",
}
MARKERS = "os^Dvp"


@cache
def embedding_points() -> dict[str, np.ndarray]:
    """Return the first two principal components of the words in each group: (words, 2).

    A word's vector is the mean of its tokens' rows in the embedding matrix of checkpoints/en-es, scaled to length 1.
    """
    folder = shipped_model("en-es")
    embeddings = load_model(folder).get_input_embeddings().weight.detach()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def vector(word: str) -> torch.Tensor:
        tokens = tokenizer(word, add_special_tokens=False)["input_ids"]  # with a space before it, as in a sentence
        return torch.nn.functional.normalize(embeddings[tokens].mean(dim=0), dim=0)

    groups = {name: words.split() for name, words in GROUPS.items()}
    vectors = torch.stack([vector(word) for words in groups.values() for word in words])
    centred = vectors - vectors.mean(dim=0)
    points = centred @ torch.linalg.svd(centred, full_matrices=False).Vh[:2].T
    points = points * points[points.abs().argmax(dim=0), range(2)].sign()  # normalise the arbitrary sign
    parts = points.split([len(words) for words in groups.values()])
    return {name: part.numpy() for name, part in zip(groups, parts, strict=True)}


def embedding_map() -> Figure:
    figure, ax = plt.subplots(figsize=(8, 5.2))
    for number, (name, points) in enumerate(embedding_points().items()):
        color = f"C{number}"
        ax.scatter(*points.T, color=color, marker=MARKERS[number], s=24, label=name)
        for word, point in zip(GROUPS[name].split(), points, strict=True):
            ax.annotate(word, point, xytext=(4, 3), textcoords="offset points", fontsize=8.5, color=color)
    ax.set(xticks=[], yticks=[], xlabel="first principal component", ylabel="second principal component")
    ax.set_title("Words with similar use are close together (embeddings of checkpoints/en-es)")
    ax.legend(fontsize=8.5)
    return figure
