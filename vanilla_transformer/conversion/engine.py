"""Generate by CTranslate2 in the place of PyTorch: the same search in less time, or in int8.

    use_ctranslate2(model, tokenizer, "runs/en-de")

From then on `model.generate` is CTranslate2's, for whoever calls it: `translate`, a pipeline, an evaluation. As with
`training.fast` it is a choice of this process, of which nothing is saved with the model. It steps aside, without a
word, for what CTranslate2 does not do in the same way: sampling, say, or a text longer than the positions written out,
or a model whose weights have changed since.
"""

import copy
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import MethodType
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from huggingface_hub.constants import HF_HOME
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import GenerateBeamEncoderDecoderOutput

from configuration_vanilla_transformer import require_private_names
from vanilla_transformer.files import new_folder


try:
    import ctranslate2
except ImportError as error:
    raise ImportError("The engine ctranslate2 is not installed: pip install 'ctranslate2>=4.8'") from error

from vanilla_transformer.conversion import to_ctranslate2


logger = logging.getLogger(__name__)
SUMS = "sums.json"  # in a converted folder: the hash of each other file
# What a generation config may say, if CTranslate2 is to follow it.
FOLLOWED = {
    "bos_token_id", "decoder_start_token_id", "early_stopping", "eos_token_id", "gnmt_length_penalty",
    "length_penalty", "max_length", "max_new_tokens", "num_beams", "num_return_sequences", "output_scores",
    "pad_token_id", "return_dict_in_generate", "transformers_version", "use_cache", "_from_model_config",
}  # fmt: skip


def use_ctranslate2(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str | Path | None = None,
    quantization: str | None = None,
) -> PreTrainedModel:
    """Let a translator generate by CTranslate2, and return it.

    It is converted at the first time and kept in its folder, or, where nothing can be written there, under HF_HOME.
    The search is the model's own, with its length penalty, but for one thing: it ends with as many finished
    hypotheses as there are beams, also where `early_stopping="never"` would go on.

    Args:
        source: where the model comes from: its folder, or its name on the Hub.
        quantization: of the weights, such as "int8"; by default float32.

    Raises:
        ValueError: CTranslate2's Transformer lacks something of this model; or it is no translator.
        OSError: the converted model cannot be written anywhere.
    """
    if not (model.config.is_encoder_decoder and model.can_generate()):
        raise ValueError(f"The engine ctranslate2 is for translators, and this is a {type(model).__name__}.")
    if (quantization or "").startswith("int8") and int8_overflows():
        logger.warning(
            "This processor has no instructions for products of int8 (VNNI): CTranslate2's are hardly faster than "
            "float32 there, and some overflow, which costs quality. CT2_USE_MKL=1 in the environment avoids that."
        )
    folder = converted(model, tokenizer, source, quantization or "float32")
    ENGINES[model] = Engine(model, tokenizer, folder)
    setattr(model, "generate", MethodType(generate, model))  # noqa: B010  # a method, to the type checker
    return model


def int8_overflows() -> bool:
    """Whether CTranslate2 multiplies in int8 by oneDNN, as on AMD's processors, without instructions for it (VNNI)."""
    capabilities = torch.cpu.get_capabilities()
    has_vnni = any(has for name, has in capabilities.items() if "vnni" in name)
    by_onednn = "AMD" in capabilities.get("cpu_name", "") and os.environ.get("CT2_USE_MKL") != "1"
    return by_onednn and not has_vnni


# --- The converted model, once for each state of what it is made from


def fingerprint(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, quantization: str) -> str:
    """A hash of all that makes the converted model what it is: weights, config, vocabulary, and the converters."""
    config = {name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"}
    tokens = [sorted(tokenizer.get_vocab().items()), tokenizer.special_tokens_map]
    total = hashlib.blake2b(Path(to_ctranslate2.__file__).read_bytes(), digest_size=8)
    for part in (ctranslate2.__version__, quantization, config, tokens):
        total.update(json.dumps(part, sort_keys=True, default=str).encode())
    for name, weight in model.state_dict().items():
        total.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        total.update(weight.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return total.hexdigest()


def sums(folder: Path) -> dict[str, str]:
    """The hash of each file in a folder but `SUMS`."""
    files = sorted(path for path in folder.iterdir() if path.name != SUMS)
    return {path.name: hashlib.blake2b(path.read_bytes()).hexdigest() for path in files}


def is_whole(folder: Path) -> bool:
    """Whether a converted model is as it was written."""
    try:
        return json.loads((folder / SUMS).read_text()) == sums(folder)
    except (OSError, ValueError):
        return False


def places(source: str | Path | None) -> list[Path]:
    """Where a converted model may lie: beside the one that it is made from, and under HF_HOME."""
    home = Path(HF_HOME, "vanilla_transformer", "ctranslate2")
    if source is None:
        return [home]
    if Path(source).is_dir():
        path = Path(source).resolve()
        return [path, home / "--".join(path.parts[1:])]
    return [home / str(source).replace("/", "--")]


def converted(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str | Path | None, quantization: str
) -> Path:
    """The folder of the converted model. One that was made from anything else is not used, and makes room.

    Raises:
        ValueError, OSError: see `use_ctranslate2`.
    """
    kind = f"ctranslate2-{quantization}-"
    name = kind + fingerprint(model, tokenizer, quantization)
    folders = [place / name for place in places(source)]
    if there := next(filter(is_whole, folders), None):
        return there
    problems = []
    for folder in folders:
        try:
            for stale in folder.parent.glob(f"{kind}{'[0-9a-f]' * 16}"):
                shutil.rmtree(stale)
            with new_folder(folder) as part:
                to_ctranslate2.export_ctranslate2(model, tokenizer, part, quantization)
                (part / SUMS).write_text(json.dumps(sums(part)))
            return folder
        except OSError as problem:
            if is_whole(folder):  # another process was sooner
                return folder
            problems.append(problem)
    raise problems[-1]


# --- Generation


class Search(NamedTuple):
    """What CTranslate2 is asked for."""

    input_ids: Tensor  # (batch, source length)
    attention_mask: Tensor
    steps: int
    settings: GenerationConfig

    @property
    def ends(self) -> list[int]:
        """The tokens that end a translation."""
        ends = self.settings.eos_token_id
        return ends if isinstance(ends, list) else [ends]

    @property
    def fill(self) -> int:
        """What stands behind a shorter translation: padding, or an end without any; and for beams if it is 0."""
        pad, is_beam_search = self.settings.pad_token_id, (self.settings.num_beams or 1) > 1
        return self.ends[0] if pad is None or (is_beam_search and pad == 0) else pad


class Engine:
    """A model in CTranslate2, asked and answering as `generate` is.

    Args:
        model: the one that was converted.
        folder: the converted one.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path):
        config = model.config
        converter = to_ctranslate2.OurConverter(model, tokenizer)
        self.source_tokens = converter.vocabulary(config.vocab_size)
        self.target_tokens = converter.vocabulary(config.target_vocab_size or config.vocab_size)
        self.target_ids = {token: i for i, token in enumerate(self.target_tokens)}
        self.versions = versions(model)
        self.translator = ctranslate2.Translator(
            str(folder), device=model.device.type, device_index=model.device.index or 0,
            # Each thread takes texts of its own. Several at one text would wait for each other most of the time.
            inter_threads=torch.get_num_threads() if model.device.type == "cpu" else 1, intra_threads=1,
        )  # fmt: skip

    def plan(self, model: PreTrainedModel, settings: GenerationConfig, rest: dict[str, Any]) -> Search | None:
        """What to ask for, or None where PyTorch has to do it.

        Args:
            rest: all that `generate` was given beside settings.
        """
        ids, mask = (rest.get(name) for name in ("input_ids", "attention_mask"))
        inputs = {name for name, value in rest.items() if value is not None}
        if model.training or ids is None or not inputs <= {"input_ids", "attention_mask"}:
            return None
        asked = {name for name, value in settings.to_diff_dict().items() if value not in (None, False)}
        if asked - FOLLOWED or versions(model) != self.versions:
            return None
        if settings.max_new_tokens is not None:
            steps = settings.max_new_tokens
        elif settings.max_length is not None:
            steps = settings.max_length - 1  # the first token begins every translation
        else:
            return None
        longest = model.config.max_position_embeddings
        start = settings.decoder_start_token_id
        if start not in (None, model.config.decoder_start_token_id) or max(ids.shape[1], steps) > longest:
            return None
        if steps < 1 or (settings.num_return_sequences or 1) > (settings.num_beams or 1):
            return None  # it says why not
        return Search(ids, torch.ones_like(ids) if mask is None else mask, steps, settings)

    def run(self, search: Search) -> list[list[tuple[list[int], float]]]:
        """For each text the tokens and the score of its hypotheses, best first."""
        settings, beams = search.settings, search.settings.num_beams or 1
        sources = [
            [self.source_tokens[i] for i in ids[mask.bool()].tolist()]
            for ids, mask in zip(search.input_ids, search.attention_mask, strict=True)
        ]
        # All hypotheses with their log-probabilities: its own penalty is not the paper's.
        results = self.translator.translate_batch(
            sources, beam_size=beams, num_hypotheses=beams, length_penalty=0, return_scores=True,
            end_token=[self.target_tokens[i] for i in search.ends], return_end_token=True,
            max_input_length=0, min_decoding_length=0, max_decoding_length=search.steps,
            max_batch_size=-(-len(sources) // self.translator.num_translators),
        )  # fmt: skip
        return [
            self.ranked(result.hypotheses, result.scores, settings)[: settings.num_return_sequences or 1]
            for result in results
        ]

    def ranked(
        self, hypotheses: Iterable[list[str]], scores: Iterable[float], settings: GenerationConfig
    ) -> list[tuple[list[int], float]]:
        """Hypotheses by their log-probability divided by the length penalty."""
        alpha, is_gnmt = (
            1.0 if settings.length_penalty is None else settings.length_penalty,
            getattr(settings, "gnmt_length_penalty", False),
        )
        scored = []
        for tokens, score in zip(hypotheses, scores, strict=True):
            penalty = ((5 + len(tokens)) / 6) ** alpha if is_gnmt else len(tokens) ** alpha
            scored.append(([self.target_ids[token] for token in tokens], score / penalty))
        return sorted(scored, key=lambda hypothesis: -hypothesis[1])


require_private_names(Tensor, "_version")


def versions(model: PreTrainedModel) -> list[int]:
    """What grows whenever PyTorch changes a weight."""
    return [weight._version for weight in model.parameters()]


ENGINES: WeakKeyDictionary[PreTrainedModel, Engine] = WeakKeyDictionary()


# A method bound to one model in the place of its class's, under the same name: a copy has no engine and an unpickled
# model not even the method, so both generate as their class does.


@torch.inference_mode()
def generate(
    self: Any, inputs: Tensor | None = None, generation_config: GenerationConfig | None = None, **options: Any
) -> Any:
    """As the method of the model's class, in the place of which it is.

    Returns:
        Tokens (batch * num_return_sequences, length); with `return_dict_in_generate` also `sequences_scores`, but no
        scores of single steps.
    """
    search = None
    if engine := ENGINES.get(self):
        settings = copy.deepcopy(generation_config or self.generation_config)
        rest = settings.update(**options)
        rest.setdefault("input_ids", inputs)
        search = engine.plan(self, settings, rest)
    if engine is None or search is None:
        return type(self).generate(self, inputs, generation_config, **options)
    found = [hypothesis for hypotheses in engine.run(search) for hypothesis in hypotheses]
    width = max(len(ids) for ids, _ in found)
    start = self.config.decoder_start_token_id
    rows = [[start, *ids, *[search.fill] * (width - len(ids))] for ids, _ in found]
    sequences = torch.tensor(rows, device=search.input_ids.device)
    if not search.settings.return_dict_in_generate:
        return sequences
    scores = torch.tensor([score for _, score in found], device=sequences.device)
    return GenerateBeamEncoderDecoderOutput(sequences=cast(torch.LongTensor, sequences), sequences_scores=scores)
