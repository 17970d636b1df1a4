"""Translate with nearest neighbours: similar positions in the training data vote for the next token.

    store = build_datastore(model, batches)      # one pass over the training data
    with use_datastore(model, store):
        model.generate(...)

This is the method of Khandelwal et al. (2021, arXiv 2010.00710), which needs no further training. For each target
position of the training data, the datastore contains the decoder state (the input of the output projection) and the
target token. The stored states most similar to the current state vote for their tokens:

    p(y) = (1 - share) p_model(y) + share * sum of w_i over the neighbours i whose token is y
    w = softmax(cos(state, state_i) / temperature) over the neighbours
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import faiss
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle
from tqdm.auto import tqdm
from transformers import PreTrainedModel
from transformers.utils import cached_file

from vanilla_transformer.files import temporary_sibling
from vanilla_transformer.loading import weights_hash
from vanilla_transformer.modeling_vanilla_transformer import IGNORED_LABEL


FOLDER = "datastore"  # name of the subfolder of the model folder
INDEX, SETTINGS = "index.faiss", "settings.json"
CELLS_SEARCHED = 8  # number of cells to search; the index has sqrt(number of states) cells


@dataclass
class Datastore:
    """Decoder states, normalised to length 1, and the next token of each.

    Args:
        index: FAISS inner-product index; the ids of its vectors are token ids.
        weights: hash of the model weights that computed the states.
        neighbours: number of nearest states that vote.
        share: weight of the neighbours in the mixture with the model, from 0 to 1.
        temperature: softmax temperature for the cosine similarities, above 0; lower values favour the nearest states.

    Raises:
        ValueError: `neighbours`, `share` or `temperature` is out of range.
    """

    index: Any
    weights: str
    neighbours: int = 64
    share: float = 0.4
    temperature: float = 0.035

    def __post_init__(self):
        if self.neighbours < 1:
            raise ValueError(f"neighbours={self.neighbours} must be at least 1.")
        if not 0 <= self.share <= 1:
            raise ValueError(f"share={self.share} must be from 0 (the model alone) to 1 (the neighbours alone).")
        if self.temperature <= 0:
            raise ValueError(f"temperature={self.temperature} must be above 0.")

    def search(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and tokens (..., neighbours) of the nearest neighbours of `states` (..., d_model)."""
        rows = F.normalize(states.detach().flatten(0, -2).float(), dim=-1).cpu()
        found = self.index.search(rows.numpy(), min(self.neighbours, self.index.ntotal))
        cosines, tokens = (torch.from_numpy(part).to(states.device).unflatten(0, states.shape[:-1]) for part in found)
        return cosines, tokens

    def mix(self, states: Tensor, logits: Tensor) -> Tensor:
        """Mix the model's logits with the neighbours of states (..., d_model) into log-probabilities (..., vocab)."""
        cosines, tokens = self.search(states)
        missing = tokens < 0  # FAISS returns -1 if the searched cells contain too few states
        weights = (cosines / self.temperature).masked_fill(missing, -torch.inf).softmax(-1)
        mixed = (1 - self.share) * logits.float().softmax(-1)
        mixed.scatter_add_(-1, tokens.masked_fill(missing, 0), self.share * weights)
        return mixed.clamp_(min=torch.finfo(mixed.dtype).tiny).log_()

    def __call__(self, projection: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> Tensor | None:
        """Return mixed log-probabilities, as a forward hook of the output projection; None (no change) in training."""
        return None if projection.training else self.mix(inputs[0], logits)

    def save(self, model_folder: str | Path) -> None:
        """Save the datastore in the model folder, replacing any previous one."""
        folder = Path(model_folder, FOLDER)
        settings = {name: value for name, value in vars(self).items() if name != "index"}
        with temporary_sibling(folder) as hidden:
            part = hidden / FOLDER
            part.mkdir()
            faiss.serialize_index(self.index).tofile(part / INDEX)
            (part / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(part, folder)


@torch.inference_mode()
def build_datastore(model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]], **settings: Any) -> Datastore:
    """Build a datastore with the decoder state and token at each label position of a translator's training data.

    The datastore takes 136 bytes per position for d_model=128, and 520 bytes for d_model=512.

    Args:
        model: trained translator.
        batches: training batches with `input_ids`, `attention_mask` and `labels`, each (batch, length).
        settings: `neighbours`, `share` and `temperature` of the `Datastore`.

    Raises:
        ValueError: the batches contain no labels, or a setting is out of range.
    """
    was_training = model.training
    model.eval()
    states, tokens = [], []
    for batch in tqdm(batches, desc="building the datastore", disable=None):
        inputs = {name: value.to(model.device) for name, value in batch.items() if name != "labels"}
        labels = batch["labels"].to(model.device)
        inputs["decoder_input_ids"] = cast(Any, model).prepare_decoder_input_ids_from_labels(labels=labels)
        kept = labels != IGNORED_LABEL
        state = cast(Any, model.base_model)(**inputs).last_hidden_state[kept]
        states.append(F.normalize(state.float(), dim=-1).cpu())
        tokens.append(labels[kept].cpu())
    model.train(was_training)
    if not sum(map(len, states)):
        raise ValueError("There is nothing to build a datastore of: the batches have no labels.")
    keys, ids = torch.cat(states), torch.cat(tokens)
    cells = round(len(keys) ** 0.5)
    index = cast(Any, faiss).index_factory(keys.shape[1], f"IVF{cells},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, 64
    index.nprobe = CELLS_SEARCHED
    index.train(keys.numpy())
    index.add_with_ids(keys.numpy(), ids.numpy())
    return Datastore(index, weights_hash(model), **settings)


def load_datastore(source: str | Path) -> Datastore:
    """Load the datastore of a model.

    Args:
        source: model folder, or model name on the Hub.

    Raises:
        FileNotFoundError: the model has no datastore.
        ValueError: the datastore is damaged.
    """
    try:
        files = [cast(str, cached_file(source, f"{FOLDER}/{name}")) for name in (INDEX, SETTINGS)]
    except OSError as error:
        raise FileNotFoundError(
            f"{source} has no datastore: build it with `vanilla-transformer datastore --model {source}`."
        ) from error
    try:
        index = faiss.deserialize_index(np.fromfile(files[0], dtype=np.uint8))
        return Datastore(index, **json.loads(Path(files[1]).read_text(encoding="utf-8")))
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"The datastore of {source} is damaged ({error}): build it again.") from error


def use_datastore(model: PreTrainedModel, store: Datastore) -> RemovableHandle:
    """Make a translator use a datastore in evaluation mode, until the returned handle is removed.

    The model's logits then become log-probabilities. Saving the model does not save the datastore.

    Raises:
        ValueError: the datastore was built with different weights, or the model already uses a datastore.
    """
    projection = cast(nn.Module, model.get_output_embeddings())
    if any(isinstance(hook, Datastore) for hook in projection._forward_hooks.values()):
        raise ValueError("This model already uses a datastore: remove its handle first.")
    if (now := weights_hash(model)) != store.weights:
        raise ValueError(
            f"The datastore was built with other weights (hash {store.weights}, the model's is {now}), or with these "
            "in another precision: build it again."
        )
    return projection.register_forward_hook(store)
