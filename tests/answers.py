"""Compute a model's answer to a text, as token ids or class ids.

This module imports nothing of the project, so it can run in processes without it.
"""

import torch
import transformers
from transformers import AutoTokenizer, pipeline


def answer(model, tokenizer, texts):
    """Return the generated ids, or the best class of each text or token, or the best start and end of an answer.

    Use single precision, so that rounding does not decide between tokens.

    Args:
        texts: one text, or a pair, such as a question and its context.
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
    """Return a shipped model's answers to the texts `asked`, for each way of loading its code.

    Args:
        source: path of a clone of this project, or its name on the Hub.
        name: name of the model, whose folder is checkpoints/NAME.
        task: task of the pipeline.

    Returns:
        Answers by way: "Auto classes", "pipeline" and "saved again" (a folder of its own, with its code).
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
