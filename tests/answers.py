"""Compute the output of a model for an input, as token ids, class ids or span positions.

This module does not import the project, so that it also runs where the project is not installed.
"""

import torch
import transformers
from transformers import AutoTokenizer, pipeline


def answer(model, tokenizer, texts):
    """Return the generated ids, the best class per sequence or token, or the best start and end of a span.

    Compute in float32, so that rounding errors do not change the argmax.

    Args:
        texts: an input of one string, or of two, such as a question and its context.
    """
    batch = tokenizer(*texts, return_tensors="pt")
    model = model.eval().float()
    with torch.inference_mode():
        if model.can_generate():
            return model.generate(**batch, max_new_tokens=40, do_sample=False)[0].tolist()
        output = model(**batch)
    logits = [output.start_logits, output.end_logits] if "start_logits" in output else [output.logits]
    return [one.argmax(-1).flatten().tolist() for one in logits]


def every_way(source, name, auto_class, task, asked):
    """Return the outputs of a shipped model for the inputs `asked`, for each way to load the model.

    Args:
        source: path of a clone of this project, or its repository name on the Hub.
        name: name of the model; its folder is checkpoints/NAME.
        task: task of the pipeline.

    Returns:
        Outputs by way of loading: "Auto classes", "pipeline" and "saved again" (saved to a new folder and reloaded).
    """
    model_class = getattr(transformers, auto_class)
    where = {"subfolder": f"checkpoints/{name}"}
    ask = pipeline(task, model=source, model_kwargs=where, trust_remote_code=True)
    models = {
        "Auto classes": (
            model_class.from_pretrained(source, **where, trust_remote_code=True),
            AutoTokenizer.from_pretrained(source, **where, trust_remote_code=True),
        ),
        "pipeline": (ask.model, ask.tokenizer),
    }
    for part in models["Auto classes"]:
        part.save_pretrained(name)
    models["saved again"] = (
        model_class.from_pretrained(name, trust_remote_code=True),
        AutoTokenizer.from_pretrained(name, trust_remote_code=True),
    )
    modules = {type(model).__module__.split(".")[0] for model, _ in models.values()}
    assert modules == {"transformers_modules"}, modules
    return {way: [answer(*parts, texts) for texts in asked] for way, parts in models.items()}
