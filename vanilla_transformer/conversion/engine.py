"""Generate by CTranslate2 in the place of PyTorch: the same search in less time, or in int8.

    use_ctranslate2(model, tokenizer, "runs/en-de")

From then on `model.generate` is CTranslate2's, for whoever calls it: `translate`, a pipeline, an evaluation. As with
`training.fast` it is a choice of this process, of which nothing is saved with the model. It steps aside for what
CTranslate2 does not do in the same way: for options of the search, such as sampling, which it names once; and without
a word for a text longer than the positions written out, or a model that is no longer what was converted. What it
cannot see is a weight that is changed in place behind PyTorch's back, by `weight.data`.
"""

import copy
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from types import MethodType
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary, ref

import torch
from huggingface_hub.constants import HF_HOME
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import GenerateBeamEncoderDecoderOutput
from transformers.utils import output_capturing

from vanilla_transformer.configuration_vanilla_transformer import require_private_names
from vanilla_transformer.files import new_folder
from vanilla_transformer.loading import weights_hash


try:
    import ctranslate2
except ImportError as error:
    raise ImportError("The engine ctranslate2 is not installed: pip install 'ctranslate2>=4.8'") from error

from vanilla_transformer.conversion import to_ctranslate2


logger = logging.getLogger(__name__)
OUTPUT_CAPTURING = output_capturing.__name__
SUMS = "sums.json"  # in a converted folder: the hash of each other file
# What a generation config may say, if CTranslate2 is to follow it. The probabilities that it ranks by sum to one.
FOLLOWED = {
    "bad_words_ids", "bos_token_id", "decoder_start_token_id", "early_stopping", "eos_token_id", "forced_eos_token_id",
    "gnmt_length_penalty", "length_penalty", "max_length", "max_new_tokens", "num_beams", "num_return_sequences",
    "output_scores", "pad_token_id", "renormalize_logits", "return_dict_in_generate", "transformers_version",
    "use_cache", "_from_model_config",
}  # fmt: skip


def use_ctranslate2(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str | Path | None = None,
    quantization: str | None = None,
) -> PreTrainedModel:
    """Let a translator generate by CTranslate2, and return it.

    It is converted at the first time and kept in its folder, or, where nothing can be written there, under HF_HOME.
    The search is the model's own, with its length penalty, but for one thing: when it ends is CTranslate2's decision,
    whatever `early_stopping` says.

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
    converter = to_ctranslate2.OurConverter(model, tokenizer)
    tokens = [converter.tokens, converter.target_tokens, tokenizer.special_tokens_map]
    total = hashlib.blake2b(Path(to_ctranslate2.__file__).read_bytes(), digest_size=8)
    for part in (ctranslate2.__version__, quantization, config, tokens):
        total.update(json.dumps(part, sort_keys=True, default=str).encode())
    total.update(weights_hash(model).encode())
    return total.hexdigest()


def sums(folder: Path) -> dict[str, str]:
    """The hash of each file in a folder but `SUMS`."""
    files = sorted(path for path in folder.iterdir() if path.name != SUMS)
    return {path.name: hashlib.blake2b(path.read_bytes()).hexdigest() for path in files}


def is_whole(folder: Path) -> bool:
    """Whether a converted model is as it was written."""
    try:
        return json.loads((folder / SUMS).read_text(encoding="utf-8")) == sums(folder)
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
                (part / SUMS).write_text(json.dumps(sums(part)), encoding="utf-8")
            return folder
        except (OSError, ValueError) as problem:
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
    def bad_words(self) -> list[list[int]]:
        """The tokens that may not follow one another. An end is never forbidden by itself."""
        return [word for word in self.settings.bad_words_ids or [] if len(word) > 1 or word[0] not in self.ends]

    @property
    def free_steps(self) -> int:
        """The steps that have a choice: the last has none where a translation is made to end."""
        return self.steps - (self.settings.forced_eos_token_id is not None)

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
        converter = to_ctranslate2.OurConverter(model, tokenizer)
        self.source_tokens, self.target_tokens = converter.tokens, converter.target_tokens
        self.target_ids = {token: i for i, token in enumerate(self.target_tokens)}
        self.state = State(model)
        self.passed_on: set[str] = set()  # the options that it has said it leaves to PyTorch
        device = model.device.type if model.device.type == "cuda" else "cpu"
        self.translator = ctranslate2.Translator(
            str(folder), device=device, device_index=model.device.index or 0,
            # Each thread takes texts of its own. Several at one text would wait for each other most of the time.
            inter_threads=torch.get_num_threads() if device == "cpu" else 1, intra_threads=1,
        )  # fmt: skip

    def plan(self, model: PreTrainedModel, settings: GenerationConfig, rest: dict[str, Any]) -> Search | None:
        """What to ask for, or None where PyTorch has to do it.

        Args:
            rest: all that `generate` was given beside settings.
        """
        ids, mask = (rest.get(name) for name in ("input_ids", "attention_mask"))
        inputs = {name for name, value in rest.items() if value is not None and value is not False}
        if model.training or ids is None or not inputs <= {"input_ids", "attention_mask"}:
            return None
        asked = {name for name, value in settings.to_diff_dict().items() if value not in (None, False)}
        if others := asked - FOLLOWED:
            if others - self.passed_on:
                logger.warning("CTranslate2 leaves this search to PyTorch, for: %s", ", ".join(sorted(others)))
            self.passed_on |= others
            return None
        if not self.state.is_of(model):
            return None
        if settings.max_new_tokens is not None:
            steps = settings.max_new_tokens
        elif settings.max_length is not None:
            steps = settings.max_length - 1  # the first token begins every translation
        else:
            return None
        beams = settings.num_beams or 1
        if settings.eos_token_id is None or (mask is not None and not mask.any(-1).all()):
            return None
        if settings.bad_words_ids and beams > 1 and not settings.renormalize_logits:
            return None  # the library ranks by what the other words have together, which is less than one
        longest = model.config.max_position_embeddings
        start = settings.decoder_start_token_id
        if start not in (None, model.config.decoder_start_token_id) or max(ids.shape[1], steps) > longest:
            return None
        forced = settings.forced_eos_token_id
        if isinstance(forced, list) or forced not in (None, settings.eos_token_id):
            return None
        if steps < 1 + (forced is not None) or (settings.num_return_sequences or 1) > beams:
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
            max_input_length=0, min_decoding_length=0, max_decoding_length=search.free_steps,
            suppress_sequences=[[self.target_tokens[i] for i in word] for word in search.bad_words],
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
            ids = [self.target_ids[token] for token in tokens]
            if (end := settings.forced_eos_token_id) is not None and ids[-1] != end:
                ids.append(end)  # the last step has no choice, and so costs nothing
            penalty = ((5 + len(ids)) / 6) ** alpha if is_gnmt else len(ids) ** alpha
            scored.append((ids, score / penalty))
        return sorted(scored, key=lambda hypothesis: -hypothesis[1])


require_private_names(Tensor, "_version")


class State:
    """What a model computes with, to see later whether it still does: its weights and its attention.

    A weight is changed if it is another one, lies elsewhere, or has grown in `_version`, which PyTorch counts.
    """

    def __init__(self, model: PreTrainedModel):
        self.weights = {name: (ref(weight), at) for name, weight, at in self.seen(model)}
        self.attention = model.config._attn_implementation

    @staticmethod
    def seen(model: PreTrainedModel) -> Iterable[tuple[str, Tensor, tuple[int, int]]]:
        """All weights by name, with their places and versions."""
        for name, weight in chain(model.named_parameters(), model.named_buffers()):
            yield name, weight, (weight.data_ptr(), weight._version)

    def is_of(self, model: PreTrainedModel) -> bool:
        """Whether the model is as it was, and no hook changes what it does; those that collect its outputs do not."""
        now = {name: (weight, at) for name, weight, at in self.seen(model)}
        if now.keys() != self.weights.keys() or model.config._attn_implementation != self.attention:
            return False
        if any(before() is not now[name][0] or at != now[name][1] for name, (before, at) in self.weights.items()):
            return False
        hooks = chain.from_iterable(
            kind.values() for module in model.modules() for kind in (module._forward_pre_hooks, module._forward_hooks)
        )
        return all(getattr(hook, "__module__", None) == OUTPUT_CAPTURING for hook in hooks)


ENGINES: WeakKeyDictionary[PreTrainedModel, Engine] = WeakKeyDictionary()


# A method bound to one model in the place of its class's, under the same name: a copy has no engine and an unpickled
# model not even the method, so both generate as their class does.


@torch.no_grad()
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
        # As the library does: what a given config leaves open is the model's own.
        settings = copy.deepcopy(generation_config or GenerationConfig())
        settings.update(**self.generation_config.to_dict(), defaults_only=True, allow_custom_entries=True)
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
