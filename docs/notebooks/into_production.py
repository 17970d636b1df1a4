# %% [markdown]
# # Into production
#
# You have a model folder. This notebook takes it further: to the Hub, to CTranslate2 and ONNX, and to bfloat16. It also shows how
# to train on several GPUs. It takes a few minutes.
#
# **By the end you will be able to** publish a model, with a dry run first; export it and check that nothing has changed; and
# start a training run on many GPUs.

# %%
import os
import subprocess
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer

from vanilla_transformer.decoding import translate
from vanilla_transformer.loading import load_model


folder = os.environ.get("TRANSLATOR")  # optional: the folder of your own translation model
if folder is None:
    from vanilla_transformer.loading import shipped_model

    folder = shipped_model("en-es")
model, tokenizer = load_model(folder), AutoTokenizer.from_pretrained(folder)
sentences = ["I like to travel.", "My brother lives in a small house."]
print(translate(sentences, model, tokenizer))


def command(*arguments):
    """Run a command of the project and print its output."""
    process = subprocess.run([sys.executable, "-m", "vanilla_transformer", *arguments], capture_output=True, text=True)
    print(process.stdout + process.stderr)
    return process.returncode


# %% [markdown]
# ## 1. What does a saved model consist of?

# %%
for file in sorted(Path(folder).iterdir()):
    print(f"{file.stat().st_size:>10,} {file.name}")

# %% [markdown]
# The weights are safetensors: nothing but numbers, with nothing that could be run. If there is any code, it is the model's own,
# in plain Python files.
#
# ### Exercise 1
#
# How many bytes does the file use per parameter? Compute `bytes_each`, the size of `model.safetensors` divided by the
# number of parameters (`model.num_parameters()`).

# %% tags=["exercise"]
bytes_each = None  # your code

# %% tags=["solution"]
bytes_each = (Path(folder) / "model.safetensors").stat().st_size / model.num_parameters()

# %% tags=["check"]
assert bytes_each is not None and 1.9 < bytes_each < 6, "4 in float32 or 2 in bfloat16, plus a little for the names"

# %% [markdown]
# ## 2. To the Hub
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
# ## 3. To other runtimes
#
# [CTranslate2](https://opennmt.net/CTranslate2/) translates several times faster on CPUs, with 8-bit weights if you like. ONNX
# can be read by almost everything. Both need the extra `export`: write `[export]` for `[train]` in the line that installs
# the project. The cells below do nothing without it.

# %%
import importlib.util


exported = Path("exported-ct2")
if importlib.util.find_spec("ctranslate2") and not exported.exists():
    command("export", "--source", str(folder), "--output", str(exported), "--to", "ctranslate2")

# %%
if exported.exists():
    import ctranslate2

    translator = ctranslate2.Translator(str(exported), device="cpu", inter_threads=1)
    batch = [tokenizer.convert_ids_to_tokens(tokenizer(sentence)["input_ids"]) for sentence in sentences]
    for result in translator.translate_batch(batch, beam_size=1, max_decoding_length=20):
        print(tokenizer.decode(tokenizer.convert_tokens_to_ids(result.hypotheses[0]), skip_special_tokens=True))

# %% [markdown]
# The translations are the same as above. As ONNX, a translator has one graph for the encoder and one for the decoder, which takes
# the keys and values of earlier steps and returns them with those of the new step.

# %%
graphs = Path("exported-onnx")
if importlib.util.find_spec("onnxscript") and not graphs.exists():
    command("export", "--source", str(folder), "--output", str(graphs), "--to", "onnx")

# %%
if graphs.exists():
    import onnxruntime

    for file in sorted(graphs.glob("*.onnx")):
        inputs = [wanted.name for wanted in onnxruntime.InferenceSession(file).get_inputs()]
        print(f"{file.name} takes {', '.join(inputs[:4])} ({len(inputs)} inputs)")

# %% [markdown]
# ## 4. Fewer bits per number
#
# ### Exercise 2
#
# How much does bfloat16 change? Make `small`, a copy of the model in bfloat16, and compute `change`, as a float: the largest
# difference between the encoder outputs of `model` and `small` for the first sentence.

# %% tags=["exercise"]
small, change = None, None  # your code

# %% tags=["solution"]
import copy


small = copy.deepcopy(model).to(torch.bfloat16)
batch = tokenizer(sentences[0], return_tensors="pt")
with torch.no_grad():
    outputs = [m.model.encoder(**batch).last_hidden_state.float() for m in (model, small)]
change = (outputs[0] - outputs[1]).abs().max().item()

# %% tags=["check"]
assert small is not None and next(small.parameters()).dtype == torch.bfloat16, "small must be in bfloat16"
assert next(model.parameters()).dtype == torch.float32, "the model itself must stay as it was"
assert 0 < change < 0.5, change

# %% [markdown]
# ## 5. Training on several GPUs
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
