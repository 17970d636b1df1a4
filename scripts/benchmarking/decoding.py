"""Measure decoding to a fixed output length with `generate`, and with our model converted to CTranslate2."""

import tempfile
from collections.abc import Callable

import ctranslate2
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarking.peers import Size, translators
from benchmarking.results import OURS, Result
from benchmarking.timing import in_turns
from vanilla_transformer.conversion.to_ctranslate2 import ModelConverter
from vanilla_transformer.data.tokenizer import BOS, EOS, PAD, PreTrainedTokenizerFast


SOURCE_LENGTH = 16

Decoder = Callable[[torch.Tensor, int, int], int]  # (source ids, number of beams, output length) -> generated tokens


def generating(model: PreTrainedModel) -> Decoder:
    """Return a decoder that calls `generate` without an end token, so that all outputs have the same length."""
    model.generation_config.eos_token_id = None

    @torch.inference_mode()
    def decode(ids: torch.Tensor, beams: int, length: int) -> int:
        mask = torch.ones_like(ids)
        output = model.generate(ids, attention_mask=mask, num_beams=beams, max_new_tokens=length, do_sample=False)
        return output[:, 1:].numel()

    return decode


def in_ctranslate2(model: PreTrainedModel, folder: str) -> Decoder:
    """Convert the model to CTranslate2 in `folder` and return its decoder."""
    tokenizer = name_ids(model.config.vocab_size)
    ModelConverter(model, tokenizer).convert(folder, force=True)
    threads = torch.get_num_threads()
    translator = ctranslate2.Translator(folder, compute_type="float32", inter_threads=threads, intra_threads=1)

    def decode(ids: torch.Tensor, beams: int, length: int) -> int:
        results = translator.translate_batch(
            [tokenizer.convert_ids_to_tokens(row) for row in ids.tolist()],
            beam_size=beams,
            min_decoding_length=length,
            max_decoding_length=length,
            max_batch_size=-(-len(ids) // threads),
        )
        return sum(len(result.hypotheses[0]) for result in results)

    return decode


def name_ids(vocab_size: int) -> PreTrainedTokenizerBase:
    """Return a tokenizer whose vocabulary has a distinct string for each id, because CTranslate2 takes strings."""
    special = {0: PAD, 1: BOS, 2: EOS, 3: "<unk>"}
    vocabulary = {special.get(i, f"<{i}>"): i for i in range(vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    names = {"pad_token": PAD, "bos_token": BOS, "eos_token": EOS, "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def decoders(size: Size, device: str, folder: str) -> dict[str, Decoder]:
    """Return a decoder for each model. On a CPU, include our model converted to CTranslate2 in `folder`."""
    made = {name: translators(size)[name]() for name in (OURS, "Marian")}
    fast = {"ours, CTranslate2": in_ctranslate2(made[OURS], folder)} if device == "cpu" else {}
    return {name: generating(model.to(device).eval()) for name, model in made.items()} | fast


def measure_decoding(
    size: Size, searches: list[tuple[int, int]], length: int, rounds: int, device: str
) -> list[Result]:
    """Return generated tokens per second for each (number of beams, batch size) in `searches`.

    All outputs have `length` tokens.
    """
    results = []
    with tempfile.TemporaryDirectory() as folder:
        tasks = decoders(size, device, folder)
        for beams, batch in searches:
            ids = torch.randint(4, size.vocab_size, (batch, SOURCE_LENGTH), device=device)
            bound = {name: lambda d=decode, i=ids, b=beams: d(i, b, length) for name, decode in tasks.items()}
            section = f"decode, {beams} beam{'s' * (beams > 1)}, batch {batch}"
            rates = in_turns(bound, rounds, device)
            results += [Result(section, name, "tokens/s", values) for name, values in rates.items()]
    return results
