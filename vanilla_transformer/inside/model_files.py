"""Pack a model into JSON for a page in which it runs, see explorer/transformer.js."""

import json
import re
from base64 import b64encode
from importlib.resources import files
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.inside.explanations import describe_step
from vanilla_transformer.inside.markup import MOST_BYTES
from vanilla_transformer.inside.recorder import find_stacks, record, unwrapped


def supported_fields() -> dict[str, list[Any]]:
    """Return the values of config fields that transformer.js supports."""
    script = files("vanilla_transformer.inside").joinpath("explorer/transformer.js").read_text(encoding="utf-8")
    (fields,) = re.findall(r"const SUPPORTED = (\{.*?\});", script, re.DOTALL)
    return json.loads(fields)


def runs_in_page(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the model can run in a page: it is small enough, and transformer.js supports its config."""
    supported = all(getattr(model.config, name, None) in values for name, values in supported_fields().items())
    size = sum(weight.nbytes for weight in compact_weights(model).values())
    return supported and tokenizer.is_fast and size <= MOST_BYTES


def compact_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights, with shared weights stored once, in bfloat16 if that is lossless, or else in float16."""
    weights: dict[int, tuple[str, Tensor]] = {}
    for name, weight in model.state_dict().items():
        weights.setdefault(weight.data_ptr(), (name, weight.float().cpu().contiguous()))
    found = dict(weights.values())
    halves = {name: weight.bfloat16() for name, weight in found.items()}
    is_lossless = all(torch.equal(halves[name].float(), weight) for name, weight in found.items())
    return halves if is_lossless else {name: weight.half() for name, weight in found.items()}


@torch.inference_mode()
def layer_steps(model: PreTrainedModel) -> dict[str, Any]:
    """Return the descriptions of the steps of each layer, such as "encoder 0", which are the same for every text."""
    ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids
    return {
        f"{stack} {layer}": [describe_step(step) for step in record(model, inputs, layer, None, stack)]
        for stack, modules in find_stacks(model).items()
        for layer in range(len(modules.layers))
    }


def model_files(model: PreTrainedModel, tokenizer: Any) -> dict[str, Any]:
    """Return what `readModel` of transformer.js needs, and the steps of each layer, as JSON-serialisable objects."""
    return {
        "config": model.config.to_dict() | {"architectures": [type(unwrapped(model)).__name__]},
        "generation": model.generation_config.to_dict() if model.can_generate() else {},
        "tokenizer": json.loads(tokenizer.backend_tokenizer.to_str()),
        "steps": layer_steps(model),
        "weights": b64encode(save(compact_weights(model))).decode(),
    }
