"""Measure decoding speed at a fixed output length: `generate` plain and compiled, and CTranslate2."""

import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import CompileConfig, PreTrainedModel, PreTrainedTokenizerBase

from benchmarking.peers import Size, translators
from benchmarking.results import OURS, Result
from benchmarking.timing import Machine, in_turns
from vanilla_transformer.configuration_vanilla_transformer import check_private_api
from vanilla_transformer.data.tokenizer import BOS, EOS, PAD, PreTrainedTokenizerFast


PEER = "Marian"
SOURCE_LENGTH = 16

Decoder = Callable[[torch.Tensor, int, int], int]  # source ids, beams, output length -> number of tokens


def name_ids(vocab_size: int) -> PreTrainedTokenizerBase:
    """Return a tokenizer that only gives ids names; <pad> is last, where CTranslate2 removes it for Marian."""
    special = {1: BOS, 2: EOS, 3: "<unk>", vocab_size - 1: PAD}
    vocabulary = {special.get(i, f"<{i}>"): i for i in range(vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    names = {"pad_token": PAD, "bos_token": BOS, "eos_token": EOS, "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def generating(model: PreTrainedModel, **options) -> Decoder:
    """Return a decoder that calls `generate` without an end token, so that all outputs have the same length."""
    model.generation_config.eos_token_id = None

    @torch.inference_mode()
    def decode(ids: torch.Tensor, beams: int, length: int) -> int:
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_beams=beams,
            max_new_tokens=length,
            do_sample=False,
            **options,
        )
        return output[:, 1:].numel()

    return decode


check_private_api(CompileConfig, "_compile_all_devices")


def compiled() -> dict:
    """Return options of `generate` for a static cache and a compiled step, which a CPU needs to be told to use."""
    config = CompileConfig(mode="default", fullgraph=True)
    config._compile_all_devices = True
    return {"cache_implementation": "static", "compile_config": config}


def in_ctranslate2(folder: Path, tokenizer: PreTrainedTokenizerBase, machine: Machine) -> Decoder:
    """Return a decoder that uses the converted model in the folder.

    Raises:
        RuntimeError: CTranslate2 cannot run on this device, for example because its CUDA libraries are missing.
    """
    import ctranslate2

    translator = ctranslate2.Translator(
        str(folder),
        device=machine.device,
        compute_type="float32",
        inter_threads=machine.threads if machine.device == "cpu" else 1,
        intra_threads=1,
    )
    translator.translate_batch([[BOS]], max_decoding_length=1)  # fails if the CUDA libraries are missing

    def decode(ids: torch.Tensor, beams: int, length: int) -> int:
        source = [tokenizer.convert_ids_to_tokens(row) for row in ids.tolist()]
        results = translator.translate_batch(
            source,
            beam_size=beams,
            min_decoding_length=length,
            max_decoding_length=length,
            max_batch_size=-(-len(source) // translator.num_translators),
        )
        return sum(len(result.hypotheses[0]) for result in results)

    return decode


def convert(found: dict[str, PreTrainedModel], tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Convert both models to CTranslate2, each into a folder of its name."""
    from ctranslate2.converters import TransformersConverter

    from vanilla_transformer.conversion.ctranslate2 import ModelConverter

    tokenizer.save_pretrained(folder / "checkpoint")
    found[PEER].save_pretrained(folder / "checkpoint")
    ModelConverter(found[OURS], tokenizer).convert(str(folder / OURS))
    TransformersConverter(str(folder / "checkpoint")).convert(str(folder / PEER))


def decoders(size: Size, machine: Machine, folder: Path) -> dict[str, Decoder]:
    """Return a decoder for each model in each installed runtime; converted models are written into the folder."""
    found = {name: translators(size)[name]() for name in (OURS, PEER)}
    fast: dict[str, Decoder] = {}
    if find_spec("ctranslate2") is None:
        print("CTranslate2 is not installed, so it is left out: pip install '.[export]'", file=sys.stderr)
    else:
        tokenizer = name_ids(size.vocab_size)
        convert(found, tokenizer, folder)
        try:
            fast = {f"{name}, CTranslate2": in_ctranslate2(folder / name, tokenizer, machine) for name in found}
        except RuntimeError as error:
            print(f"CTranslate2 is left out: {error}", file=sys.stderr)
    result = {name: generating(model.to(machine.device).eval()) for name, model in found.items()}
    result |= {f"{name}, compiled": generating(model, **compiled()) for name, model in found.items()}
    return result | fast


def measure_decoding(
    size: Size, searches: list[tuple[int, int]], length: int, rounds: int, machine: Machine
) -> list[Result]:
    """Measure tokens per second at a fixed output length, for each pair of beams and batch size in `searches`."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        tasks = decoders(size, machine, Path(folder))
        for beams, batch in searches:
            ids = torch.randint(4, size.vocab_size - 1, (batch, SOURCE_LENGTH), device=machine.device)
            # `generate` compiles greedy search only; beam search stays uncompiled.
            bound = {
                name: lambda d=decode, i=ids, b=beams: d(i, b, length)
                for name, decode in tasks.items()
                if beams == 1 or not name.endswith("compiled")
            }
            # The first call with a new shape compiles.
            firsts = {name: machine.seconds(task) for name, task in bound.items() if name.endswith("compiled")}
            notes = {name: f"after a first call of {seconds:.1f} s" for name, seconds in firsts.items()}
            rates = in_turns(machine, bound, rounds)
            section = f"decode, {beams} beam{'s' * (beams > 1)}, batch {batch}"
            measured = [
                Result(section, name, "tokens/s", values, notes.get(name, "")) for name, values in rates.items()
            ]
            medians = {result.model: result.median for result in measured}
            for result in measured:
                name, _, runtime = result.model.partition(", ")
                if runtime == "CTranslate2":
                    result.note = f"{result.median / medians[name]:.1f} times its `generate`"
            results += measured
    return results
