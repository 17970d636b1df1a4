"""Convert models for CTranslate2, and translate with it: faster than PyTorch on a CPU, or in int8.

    translator = CTranslate2Translator(model, tokenizer, "runs/en-de")
    translator.translate(["A man plays the guitar."])

Translators become a `ctranslate2.Translator`, language models a `ctranslate2.Generator`, encoders a
`ctranslate2.Encoder` that returns the last hidden states.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import ctranslate2
import numpy as np
import torch
from ctranslate2.converters import Converter, utils
from ctranslate2.specs import attention_spec, common_spec, model_spec, transformer_spec
from huggingface_hub.constants import HF_HOME
from torch import nn
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.decoding import EXTRA_TOKENS, longest_input, longest_output
from vanilla_transformer.files import new_folder
from vanilla_transformer.loading import weights_hash
from vanilla_transformer.modeling_vanilla_transformer import (
    AddAndNorm,
    DecoderLayer,
    MultiHeadAttention,
    TransformerStack,
)


logger = logging.getLogger(__name__)
CHECKSUMS = "sums.json"  # in a converted folder: the hash of each other file
ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "gelu_new": common_spec.Activation.GELUTanh,
    "gelu_pytorch_tanh": common_spec.Activation.GELUTanh,
    "silu": common_spec.Activation.SWISH,
    "swish": common_spec.Activation.SWISH,
}


# Settings of a generation config that the translator follows, or that change nothing without sampling.
FOLLOWED = {
    "bad_words_ids", "bos_token_id", "decoder_start_token_id", "early_stopping", "eos_token_id", "forced_bos_token_id",
    "forced_eos_token_id", "gnmt_length_penalty", "length_penalty", "max_length", "max_new_tokens", "num_beams",
    "num_return_sequences", "output_scores", "pad_token_id", "renormalize_logits", "return_dict_in_generate",
    "temperature", "top_k", "top_p", "transformers_version", "use_cache", "_from_model_config",
}  # fmt: skip
# Values of other settings that change nothing either.
NEUTRAL = {
    "diversity_penalty": 0, "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1, "min_length": 0,
    "min_new_tokens": 0, "no_repeat_ngram_size": 0, "num_beam_groups": 1, "repetition_penalty": 1,
}  # fmt: skip


def check_config(config: PreTrainedConfig) -> None:
    """Raise a ValueError that names a field which CTranslate2's Transformer does not support."""
    usual = config.d_model // config.num_heads
    if config.d_model % config.num_heads or (config.d_k, config.d_v) != (usual, usual):
        raise ValueError(f"d_k={config.d_k}, d_v={config.d_v}: CTranslate2's heads are d_model / num_heads = {usual}.")
    if config.activation_function not in ACTIVATIONS:
        raise ValueError(
            f"activation_function={config.activation_function!r} must be one of: {', '.join(ACTIVATIONS)}."
        )
    if config.sliding_window is not None:
        raise ValueError(f"sliding_window={config.sliding_window}: CTranslate2's encoder attends to everything.")


class ModelConverter(Converter):
    """Fills CTranslate2's specification of a Transformer.

    Positions of every kind become a table of `max_position_embeddings` rows, which limits the length of a text.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        check_config(model.config)
        self.model, self.tokenizer, self.config = model, tokenizer, model.config
        config, known = model.config, {i: token for token, i in tokenizer.get_vocab().items()}
        self.tokens = self.by_id(known, config.vocab_size)
        if isinstance(target := getattr(tokenizer, "decoder", None), dict):  # FSMT and some Marian tokenizers have two
            known = known | target
        self.target_tokens = self.by_id(known, getattr(config, "target_vocab_size", None) or config.vocab_size)

    def _load(self) -> model_spec.ModelSpec:
        spec = self.make_spec()
        if self.config.is_encoder_decoder:
            spec.register_source_vocabulary(self.tokens)
            spec.register_target_vocabulary(self.target_tokens)
            spec.config.decoder_start_token = self.target_tokens[self.config.decoder_start_token_id]
        else:
            spec.register_vocabulary(self.tokens)
        spec.config.layer_norm_epsilon = self.config.layer_norm_eps
        for name in ("bos_token", "eos_token", "unk_token"):
            # CTranslate2 needs all three, but byte-level tokenizers have no unknown token, and GPT's no other.
            tokenizer = self.tokenizer
            names = (getattr(tokenizer, name), tokenizer.pad_token, tokenizer.unk_token, tokenizer.eos_token)
            setattr(spec.config, name, next(filter(None, names), self.tokens[0]))
        if self.model.can_generate():
            end = getattr(self.model, "generation_config").eos_token_id  # noqa: B009  # mypy takes it for a tensor
            end = self.config.eos_token_id if end is None else end
            end = end[0] if isinstance(end, list) else end
            if end is not None:  # the tokenizers of BERT and FSMT name another one, or none
                spec.config.eos_token = self.target_tokens[end]
        return spec

    def by_id(self, known: dict[int, str], size: int) -> list[str]:
        """Return the tokens of a vocabulary; ids without a token get a made-up name."""
        return [known.get(i) or self.unlisted(i) or f"<unused{i}>" for i in range(size)]

    def unlisted(self, i: int) -> str | None:
        """Return a token that the tokenizer knows but does not list, such as a language of M2M100."""
        if i >= len(self.tokenizer):
            return None
        token = cast(str | None, self.tokenizer.convert_ids_to_tokens(i))
        return token if token is not None and self.tokenizer.convert_tokens_to_ids(token) == i else None

    def make_spec(self) -> model_spec.ModelSpec:
        """Return the specification for the model's family, filled with its weights."""
        config, model = self.config, cast(Any, self.model)
        body = model.base_model
        options = {
            "num_heads": config.num_heads,
            "pre_norm": config.norm_position == "pre",
            "activation": ACTIVATIONS[config.activation_function],
            "layernorm_embedding": config.normalize_embedding,
        }
        if config.is_encoder_decoder:
            depths = (config.encoder_layers, config.decoder_layers)
            spec = transformer_spec.TransformerSpec.from_config(depths, **options)
            self.fill_stack(spec.encoder, body.encoder)
            self.fill_stack(spec.decoder, body.decoder)
            self.fill_linear(spec.decoder.projection, model.lm_head)
        elif self.model.can_generate():
            spec = transformer_spec.TransformerDecoderModelSpec.from_config(config.num_layers, **options)
            self.fill_stack(spec.decoder, body)
            self.fill_linear(spec.decoder.projection, model.lm_head)
        else:
            encoder = transformer_spec.TransformerEncoderSpec(config.num_layers, **options)
            spec = transformer_spec.TransformerEncoderModelSpec(encoder)
            self.fill_stack(spec.encoder, body)
        return spec

    def fill_stack(self, spec: model_spec.LayerSpec, stack: TransformerStack) -> None:
        """Fill an encoder or decoder: embeddings, positions, layers and the final norm."""
        embeddings = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
        embeddings.weight = self.array(stack.embed_tokens.weight)
        spec.scale_embeddings = stack.embed_scale
        with torch.no_grad():
            indices = torch.arange(self.config.max_position_embeddings)[None] + self.config.position_offset
            positions = stack.embed_positions(indices)[0]
            if (types := getattr(stack, "embed_types", None)) is not None:  # all tokens have type 0
                positions = positions + types.weight[0] * stack.embed_scale
        spec.position_encodings.encodings = self.array(positions)
        if self.config.normalize_embedding:
            self.fill_norm(spec.layernorm_embedding, cast(nn.LayerNorm, stack.embed_norm))
        if self.config.norm_position == "pre":
            self.fill_norm(spec.layer_norm, cast(nn.LayerNorm, stack.norm))
        layers = cast(Iterable[DecoderLayer], stack.layers)  # encoder-only and decoder-only layers have no cross_attn
        for layer_spec, layer in zip(spec.layer, layers, strict=True):
            self.fill_attention(layer_spec.self_attention, layer.self_attn, layer.self_attn_add_norm)
            if hasattr(layer, "cross_attn"):
                self.fill_attention(layer_spec.attention, layer.cross_attn, layer.cross_attn_add_norm)
            self.fill_linear(layer_spec.ffn.linear_0, layer.feed_forward.fc1)
            self.fill_linear(layer_spec.ffn.linear_1, layer.feed_forward.fc2)
            self.fill_norm(layer_spec.ffn.layer_norm, layer.feed_forward_add_norm.norm)

    def fill_attention(
        self, spec: attention_spec.MultiHeadAttentionSpec, attention: MultiHeadAttention, add_norm: AddAndNorm
    ) -> None:
        """Fill an attention block. CTranslate2 fuses the projections of one input: Q, K and V, or K and V."""
        projections = [common_spec.LinearSpec() for _ in range(3)]
        for projection, name in zip(projections, ("q_proj", "k_proj", "v_proj"), strict=True):
            self.fill_linear(projection, getattr(attention, name))
        fused = [projections] if len(spec.linear) == 2 else [projections[:1], projections[1:]]
        for linear, parts in zip(spec.linear, fused, strict=False):
            utils.fuse_linear(linear, parts)
        self.fill_linear(spec.linear[-1], attention.o_proj)
        self.fill_norm(spec.layer_norm, add_norm.norm)

    def fill_linear(self, spec: common_spec.LinearSpec, linear: nn.Linear) -> None:
        """Copy the weight (outputs, inputs), and the bias if there is one."""
        spec.weight = self.array(linear.weight)
        if linear.bias is not None:
            spec.bias = self.array(linear.bias)

    def fill_norm(self, spec: common_spec.LayerNormSpec, norm: nn.LayerNorm) -> None:
        """Copy the scale and shift of a layer norm."""
        spec.gamma, spec.beta = self.array(norm.weight), self.array(norm.bias)

    @staticmethod
    def array(tensor: torch.Tensor) -> np.ndarray:
        """Return the tensor as CTranslate2 takes it: float32, on the CPU."""
        return tensor.detach().float().cpu().numpy()


def export_ctranslate2(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, quantization: str | None
) -> None:
    """Write model.bin, its config and vocabulary into the new folder.

    Raises:
        ValueError: CTranslate2's Transformer does not support a field of the config.
    """
    ModelConverter(model, tokenizer).convert(str(folder), quantization=quantization)


# --- The converted model, kept beside the model until its weights, config, tokenizer or converter change


def fingerprint(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, quantization: str) -> str:
    """Return a hash of everything that determines the conversion: weights, config, vocabulary, and the converter."""
    config = {name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"}
    converter = ModelConverter(model, tokenizer)
    tokens = [converter.tokens, converter.target_tokens, tokenizer.special_tokens_map]
    total = hashlib.blake2b(Path(__file__).read_bytes(), digest_size=8)
    for part in (ctranslate2.__version__, quantization, config, tokens):
        total.update(json.dumps(part, sort_keys=True, default=str).encode())
    total.update(weights_hash(model).encode())
    return total.hexdigest()


def checksums(folder: Path) -> dict[str, str]:
    """Return the hash of each file in a folder but `CHECKSUMS`."""
    files = sorted(path for path in folder.iterdir() if path.name != CHECKSUMS)
    return {path.name: hashlib.blake2b(path.read_bytes()).hexdigest() for path in files}


def is_intact(folder: Path) -> bool:
    """Whether a converted model is as it was written."""
    try:
        return json.loads((folder / CHECKSUMS).read_text(encoding="utf-8")) == checksums(folder)
    except (OSError, ValueError):
        return False


def cache_dirs(source: str | Path | None) -> list[Path]:
    """Return the folders for a converted model, best first: that of the model, and one under HF_HOME."""
    home = Path(HF_HOME, "vanilla_transformer", "ctranslate2")
    if source is None:
        return [home]
    if Path(source).is_dir():
        path = Path(source).resolve()
        return [path, home / "--".join(path.parts[1:])]
    return [home / str(source).replace("/", "--")]


def convert_cached(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str | Path | None, quantization: str
) -> Path:
    """Return the folder of the converted model. A damaged or stale conversion is removed and redone.

    Raises:
        ValueError: CTranslate2's Transformer does not support a field of the config.
        OSError: no folder is writable.
    """
    kind = f"ctranslate2-{quantization}-"
    name = kind + fingerprint(model, tokenizer, quantization)
    folders = [folder / name for folder in cache_dirs(source)]
    if cached := next(filter(is_intact, folders), None):
        return cached
    problems = []
    for folder in folders:
        try:
            for stale in folder.parent.glob(f"{kind}{'[0-9a-f]' * 16}"):
                shutil.rmtree(stale)
            with new_folder(folder) as part:
                export_ctranslate2(model, tokenizer, part, quantization)
                (part / CHECKSUMS).write_text(json.dumps(checksums(part)), encoding="utf-8")
            return folder
        except (OSError, ValueError) as problem:
            if is_intact(folder):  # another process was faster
                return folder
            problems.append(problem)
    raise problems[-1]


# --- Translation


def int8_overflows() -> bool:
    """Whether CTranslate2 multiplies in int8 by oneDNN, as on AMD processors, without instructions for it (VNNI)."""
    capabilities = torch.cpu.get_capabilities()
    has_vnni = any(has for name, has in capabilities.items() if "vnni" in name)
    by_onednn = "AMD" in capabilities.get("cpu_name", "") and os.environ.get("CT2_USE_MKL") != "1"
    return by_onednn and not has_vnni


def check_generation(settings: GenerationConfig, config: PreTrainedConfig) -> None:
    """Raise a ValueError that names a setting of `generate` which CTranslate2 does not follow in the same way."""
    given = {
        name: value for name, value in settings.to_diff_dict().items() if value is not None and value is not False
    }
    problems = [
        f"{name}={value!r}"
        for name, value in given.items()
        if name not in FOLLOWED and (name not in NEUTRAL or value != NEUTRAL[name])
    ]
    if settings.eos_token_id is None:
        problems.append("eos_token_id=None")
    if settings.forced_eos_token_id not in (None, settings.eos_token_id):
        problems.append(f"forced_eos_token_id={settings.forced_eos_token_id!r}")
    if settings.decoder_start_token_id not in (None, config.decoder_start_token_id):
        problems.append(f"decoder_start_token_id={settings.decoder_start_token_id!r}")
    if settings.bad_words_ids and not settings.renormalize_logits and (settings.num_beams or 1) > 1:
        problems.append(f"bad_words_ids={settings.bad_words_ids!r} without renormalize_logits")
    if problems:
        raise ValueError(f"CTranslate2 does not generate with {', '.join(problems)}: use PyTorch.")


class CTranslate2Translator:
    """Translates with CTranslate2 as the model does by its generation config, but stops a beam search by its own rule.

    The model is converted the first time. The conversion is kept in its folder or, if that is not writable, under
    HF_HOME. Later changes of the model have no effect.

    Args:
        source: where the model was loaded from, a folder or a name on the Hub.
        quantization: type of the weights, such as "int8"; by default float32.

    Raises:
        ValueError: the model is no translator, or CTranslate2 does not support its config or generation config.
        OSError: the converted model cannot be written anywhere.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        source: str | Path | None = None,
        quantization: str | None = None,
    ):
        if not (model.config.is_encoder_decoder and model.can_generate()):
            raise ValueError(f"The engine ctranslate2 is for translators, and this is a {type(model).__name__}.")
        self.tokenizer, self.config, self.settings = tokenizer, model.config, cast(Any, model.generation_config)
        check_generation(self.settings, self.config)
        if (quantization or "").startswith("int8") and int8_overflows():
            logger.warning(
                "This processor has no instructions for products of int8 (VNNI): CTranslate2's are hardly faster than "
                "float32 there, and some overflow, which costs quality. Set CT2_USE_MKL=1 in the environment."
            )
        converter = ModelConverter(model, tokenizer)
        self.source_tokens, self.target_tokens = converter.tokens, converter.target_tokens
        self.target_ids = {token: i for i, token in enumerate(self.target_tokens)}
        device = model.device.type if model.device.type == "cuda" else "cpu"
        self.translator = ctranslate2.Translator(
            str(convert_cached(model, tokenizer, source, quantization or "float32")),
            device=device,
            device_index=model.device.index or 0,
            # Each thread translates texts of its own: several threads at one text would mostly wait for each other.
            inter_threads=torch.get_num_threads() if device == "cpu" else 1,
            intra_threads=1,
        )

    def translate(
        self,
        texts: list[str],
        extra_tokens: int = EXTRA_TOKENS,
        num_beams: int | None = None,
        length_penalty: float | None = None,
    ) -> list[str]:
        """Translate a batch of texts. Blank texts stay blank, and texts too long for the model are truncated."""
        limit = longest_input(self.tokenizer, self.config)
        rows = self.tokenizer(texts, split_special_tokens=True, truncation=True, max_length=limit)["input_ids"]
        longest = longest_output(self.config, max(map(len, rows)), extra_tokens)
        results = self.search(rows, longest, num_beams, length_penalty)
        best = self.tokenizer.batch_decode([hypotheses[0][0] for hypotheses in results], skip_special_tokens=True)
        return [translation if text.strip() else "" for text, translation in zip(texts, best, strict=True)]

    def search(
        self,
        rows: list[list[int]],
        max_length: int,
        num_beams: int | None = None,
        length_penalty: float | None = None,
    ) -> list[list[tuple[list[int], float]]]:
        """Return for each row the tokens and the scores of its hypotheses, best first.

        A forced first token is a prefix, after which CTranslate2 ends a hypothesis at once only if the end is the most
        likely token.

        Args:
            max_length: of a hypothesis, with its start token, as for `generate`.
        """
        settings, beams = self.settings, num_beams or self.settings.num_beams or 1
        ends = settings.eos_token_id if isinstance(settings.eos_token_id, list) else [settings.eos_token_id]
        bad_words = [word for word in settings.bad_words_ids or [] if len(word) > 1 or word[0] not in ends]
        steps = min(max_length - 1, self.config.max_position_embeddings)
        start = [] if settings.forced_bos_token_id is None else [self.target_tokens[settings.forced_bos_token_id]]
        results = self.translator.translate_batch(
            [[self.source_tokens[i] for i in row] for row in rows],
            target_prefix=[start] * len(rows) if start else None,
            # Return all hypotheses with their log-probabilities: CTranslate2's length penalty is not the paper's.
            beam_size=beams,
            num_hypotheses=beams,
            length_penalty=0,
            return_scores=True,
            end_token=[self.target_tokens[i] for i in ends],
            return_end_token=True,
            max_input_length=0,
            min_decoding_length=0,
            max_decoding_length=steps - (settings.forced_eos_token_id is not None),  # a forced end is appended below
            suppress_sequences=[[self.target_tokens[i] for i in word] for word in bad_words],
            max_batch_size=-(-len(rows) // self.translator.num_translators),
        )
        return [self.rank(result.hypotheses, result.scores, length_penalty) for result in results]

    def rank(
        self, hypotheses: Iterable[list[str]], scores: Iterable[float], length_penalty: float | None
    ) -> list[tuple[list[int], float]]:
        """Sort hypotheses by their log-probability divided by the length penalty of the generation config."""
        alpha = self.settings.length_penalty if length_penalty is None else length_penalty
        alpha = 1.0 if alpha is None else alpha
        end, is_gnmt = self.settings.forced_eos_token_id, getattr(self.settings, "gnmt_length_penalty", False)
        ranked = []
        for tokens, score in zip(hypotheses, scores, strict=True):
            ids = [self.target_ids[token] for token in tokens]
            if end is not None and ids[-1] != end:
                ids.append(end)  # forced, so its probability is 1
            penalty = ((5 + len(ids)) / 6) ** alpha if is_gnmt else len(ids) ** alpha
            ranked.append((ids, score / penalty))
        return sorted(ranked, key=lambda hypothesis: -hypothesis[1])
