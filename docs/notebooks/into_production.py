# %% [markdown]
# # Into production
#
# You have a model folder. This notebook takes it further: faster decoding, 8-bit weights, the Hub, CTranslate2 and ONNX. It also
# shows how to train on several GPUs. It takes about a minute.
#
# **By the end you will be able to** say what a saved model consists of; decode with a cache; make weights smaller and measure what
# this changes; publish a model, with a dry run first; and start a training run on many GPUs.

# %%
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from transformers import AutoTokenizer

from vanilla_transformer.decoding import translate
from vanilla_transformer.loading import load_model


# optional: the folder of your own translation model
folder = os.environ.get("TRANSLATOR")
if folder is None:
    from vanilla_transformer.loading import shipped_model

    folder = shipped_model("en-es")
model, tokenizer = load_model(folder), AutoTokenizer.from_pretrained(folder)
sentences = ["I like to travel.", "My brother lives in a small house."]
print(translate(sentences, model, tokenizer))

# %% [markdown]
# ## 1. What does a saved model consist of?

# %%
for file in sorted(Path(folder).iterdir()):
    print(f"{file.stat().st_size:>10,} {file.name}")

# %% [markdown]
# The weights are safetensors: nothing but numbers, with nothing that could be run. If there is any code, it is the model's own,
# in plain Python files.
#
# ### Exercise 1: bytes
#
# How many bytes does the file use per parameter? Compute `bytes_each`, the size of `model.safetensors` divided by the
# number of parameters (`model.num_parameters()`). float32 takes 4 bytes, bfloat16 takes 2, and the names take a few.

# %% tags=["exercise"]
bytes_each = None  # your code

# %% tags=["wrong"]
bytes_each = 4

# %% tags=["wrong"]
bytes_each = 2.0

# %% tags=["solution"]
bytes_each = (
    Path(folder) / "model.safetensors"
).stat().st_size / model.num_parameters()

# %% tags=["check"]
weights = (Path(folder) / "model.safetensors").read_bytes()
assert (
    bytes_each is not None
    and abs(bytes_each * model.num_parameters() - len(weights)) < 1
), f"{len(weights):,} bytes in all"

# %%
print(bytes_each, "bytes per parameter")

# %% [markdown]
# ## 2. A step with a cache
#
# A decoder writes one token per step. Without a cache, it computes the keys and values of all earlier tokens again in each
# step. With one, it gets only the newest token, and reads the keys and values of the earlier ones from the cache.
#
# ### Exercise 2: a step
#
# Write `write(source, steps, use_cache)`, which writes `steps` tokens greedily and returns them as a list. In each step, call
# `decode(source, memory, tokens, cache)`, which returns the logits and the new cache. With the cache, give it only the newest
# token. Without it, give it all tokens so far, and `None` as the cache. The first token is `START`.

# %%
# the name of the cache: "past_key_values", and "cache" since transformers 5.24
from vanilla_transformer.generation_vanilla_transformer import CACHE


START = model.config.decoder_start_token_id


@torch.no_grad()
def encode(source):
    """Return the encoder's output, which all steps share."""
    return model.get_encoder()(**source)


@torch.no_grad()
def decode(source, memory, tokens, cache):
    """Return the logits of the token after a list of tokens, and the cache, which now contains these tokens too."""
    inputs = {
        "attention_mask": source["attention_mask"],
        "decoder_input_ids": torch.tensor([tokens]),
    }
    output = model(encoder_outputs=memory, **inputs, **{CACHE: cache}, use_cache=True)
    return output.logits[0, -1], output[CACHE]


# %% tags=["exercise"]
def write(source, steps, use_cache):
    """Write tokens greedily."""
    return []  # your code


# %% tags=["wrong"]
def write(source, steps, use_cache):
    """Never use the cache."""
    memory, written = encode(source), [START]
    for _ in range(steps):
        written.append(decode(source, memory, written, None)[0].argmax().item())
    return written[1:]


# %% tags=["wrong"]
def write(source, steps, use_cache):
    """Give only the newest token, and no cache."""
    memory, written = encode(source), [START]
    for _ in range(steps):
        tokens = written[-1:] if use_cache else written
        written.append(decode(source, memory, tokens, None)[0].argmax().item())
    return written[1:]


# %% tags=["solution"]
def write(source, steps, use_cache):
    """Write tokens greedily."""
    memory, written, cache = encode(source), [START], None
    for _ in range(steps):
        if use_cache:
            logits, cache = decode(source, memory, written[-1:], cache)
        else:
            logits, _ = decode(source, memory, written, None)
        written.append(logits.argmax().item())
    return written[1:]


# %% tags=["check"]
source = tokenizer(sentences[1], return_tensors="pt")
plain_decode = decode
try:
    for use_cache in (False, True):
        given = []  # the number of tokens in each step, and whether there is a cache

        def decode(source, memory, tokens, cache, given=given):
            given.append((len(tokens), cache is not None))
            return plain_decode(source, memory, tokens, cache)

        written = write(source, 6, use_cache)
        assert len(written) == 6, f"{len(written)} tokens instead of 6"
        with torch.no_grad():
            target = torch.tensor([[START, *written[:-1]]])
            expected = (
                model(**source, decoder_input_ids=target).logits[0].argmax(dim=-1)
            )
        assert written == expected.tolist(), "these are not the most probable tokens"
        lengths = [length for length, _ in given]
        expected = [1] * 6 if use_cache else [1, 2, 3, 4, 5, 6]
        assert lengths == expected, f"use_cache={use_cache}: {lengths} tokens given"
        cached = [has_cache for _, has_cache in given]
        expected = [False] + [use_cache] * 5
        assert cached == expected, f"use_cache={use_cache}: with a cache: {cached}"
finally:
    decode = plain_decode

# %% [markdown]
# How long does each of them take? The longer the text, the more the cache saves.

# %%
for use_cache in (False, True):
    start = time.perf_counter()
    write(source, 60, use_cache)
    print(f"use_cache={use_cache!s:5}  {time.perf_counter() - start:.2f} s")

# %% [markdown]
# ## 3. Fewer bits per number
#
# bfloat16 has 16 bits per number instead of 32. How much does that change?
#
# ### Exercise 3: 16 bits
#
# Make `small`, a copy of the model in bfloat16 (`copy.deepcopy` copies a model), and compute `change`, as a float: the largest
# difference between the encoder outputs (`model.model.encoder(**source).last_hidden_state`) of `model` and `small`.

# %% tags=["exercise"]
small, change = None, None  # your code

# %% tags=["wrong"]
import copy


small, change = copy.deepcopy(model).to(torch.bfloat16), 0.1

# %% tags=["wrong"]
small = copy.deepcopy(model).to(torch.bfloat16)
with torch.no_grad():
    change = (
        (small.model.encoder(**source).last_hidden_state.float()).abs().max().item()
    )

# %% tags=["solution"]
import copy


small = copy.deepcopy(model).to(torch.bfloat16)
with torch.no_grad():
    outputs = [
        m.model.encoder(**source).last_hidden_state.float() for m in (model, small)
    ]
change = (outputs[0] - outputs[1]).abs().max().item()

# %% tags=["check"]
assert small is not None and next(small.parameters()).dtype == torch.bfloat16, (
    "small must be in bfloat16"
)
assert next(model.parameters()).dtype == torch.float32, (
    "the model itself must stay as it was"
)
with torch.no_grad():
    rounded = (
        load_model(folder, dtype=torch.bfloat16)
        .model.encoder(**source)
        .last_hidden_state.float()
    )
    expected = torch.dist(
        model.model.encoder(**source).last_hidden_state, rounded, p=float("inf")
    ).item()
assert abs(change - expected) < 1e-3, f"the largest difference is {expected:.4f}"

# %% [markdown]
# ### Exercise 4: 8 bits
#
# With 8 bits, a number is an integer from -127 to 127, times a scale. Write `to_int8(matrix)`, which returns the integers (dtype
# `torch.int8`) and the scales, one per row with the shape (rows, 1). Choose the scale so that the largest absolute
# value of a row becomes 127, and round to the nearest integer.


# %% tags=["exercise"]
def to_int8(matrix):
    """Return 8-bit integers, and one scale per row."""
    return matrix, torch.ones(len(matrix), 1)  # your code


# %% tags=["wrong"]
def to_int8(matrix):
    """Use one scale for the whole matrix."""
    scale = matrix.abs().max() / 127
    return (matrix / scale).round().to(torch.int8), scale.expand(len(matrix), 1)


# %% tags=["wrong"]
def to_int8(matrix):
    """Cut decimals off instead of rounding."""
    scale = matrix.abs().amax(dim=1, keepdim=True) / 127
    return (matrix / scale).to(torch.int8), scale


# %% tags=["solution"]
def to_int8(matrix):
    """Return 8-bit integers, and one scale per row."""
    scale = matrix.abs().amax(dim=1, keepdim=True) / 127
    return (matrix / scale).round().to(torch.int8), scale


# %% tags=["check"]
matrix = model.get_encoder().layers[0].feed_forward.fc1.weight.detach()
integers, scales = to_int8(matrix)
assert integers.dtype == torch.int8 and scales.shape == (len(matrix), 1), (
    "integers in int8, one scale per row"
)
assert (integers.int().abs().amax(dim=1) == 127).all(), (
    "the largest absolute value of each row must become 127"
)
errors = (integers * scales - matrix).abs()
assert (errors <= scales * 0.5001).all(), (
    "the nearest integer is at most half a scale away"
)

# %%
integers, scales = to_int8(matrix)
plt.figure(figsize=(6, 2.5))
plt.hist(integers.flatten().float(), bins=127)
plt.xlabel("8-bit integer")
plt.ylabel("weights")
plt.title(
    f"Rounded to 8 bits, a weight changes by {(integers * scales - matrix).abs().mean():.1e} on average"
)
plt.show()

# %% [markdown]
# ## 4. To the Hub
#
# First look at what would be uploaded, without sending anything. Then log in with `hf auth login`, and leave out `--dry_run`.
#
# ```bash
# vanilla-transformer push runs/my-model USER/NAME --dry_run
# vanilla-transformer push runs/my-model USER/NAME --private
# ```
#
# To load it, others do not have to install this project; they only pass `trust_remote_code=True`. A Space with the demo is
# uploaded the same way: [the page on the Hub](../hub.md) has the command.
#
# ## 5. To other runtimes
#
# [CTranslate2](https://opennmt.net/CTranslate2/) translates several times faster on CPUs, with 8-bit weights if you like. ONNX
# can be read by almost everything. Both need the extra `export`: write `[export]` for `[train]` in the line that installs
# the project. The next cell does nothing without it.


# %%
def command(*arguments):
    """Run a command of the project and print its output."""
    print(
        subprocess.run(
            [sys.executable, "-m", "vanilla_transformer", *arguments],
            capture_output=True,
            text=True,
        ).stdout
    )


exported = Path("exported-ct2")
if importlib.util.find_spec("ctranslate2"):
    if not exported.exists():
        command(
            "export",
            "--source",
            str(folder),
            "--output",
            str(exported),
            "--to",
            "ctranslate2",
        )

    import ctranslate2

    translator = ctranslate2.Translator(str(exported), device="cpu", inter_threads=1)
    batch = [
        tokenizer.convert_ids_to_tokens(tokenizer(sentence)["input_ids"])
        for sentence in sentences
    ]
    for result in translator.translate_batch(
        batch, beam_size=1, max_decoding_length=20
    ):
        print(
            tokenizer.decode(
                tokenizer.convert_tokens_to_ids(result.hypotheses[0]),
                skip_special_tokens=True,
            )
        )

# %% [markdown]
# `--to onnx` writes two graphs instead, one for the encoder and one for the decoder. The decoder's graph takes the keys and values of
# earlier steps and returns them with those of the new step: the cache of section 2.
#
# ## 6. Training on several GPUs
#
# Start the same script once per GPU. DDP keeps a whole copy of the model on each GPU; FSDP2 divides the parameters and the
# optimizer among them, for models that do not fit on one.
#
# ```bash
# torchrun --nproc_per_node 8 scripts/train.py translation --preset big --bf16 true
# accelerate launch --config_file launch/fsdp2.yaml --num_processes 8 scripts/train.py translation --preset big
# ```
#
# [From one GPU to many machines](../scale.md) says more.
