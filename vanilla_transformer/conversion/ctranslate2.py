"""Translate with CTranslate2 instead of PyTorch: faster on a CPU, or in int8.

translator = CTranslate2Translator(model, tokenizer, quantization="int8")
translator.translate(["A man plays the guitar."])
"""

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import ctranslate2
import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.conversion.to_ctranslate2 import ModelConverter
from vanilla_transformer.decoding import EXTRA_TOKENS, longest_input, longest_output


logger = logging.getLogger(__name__)

# Generation config settings that CTranslate2 supports, or that only affect sampling
FOLLOWED = {
    "bad_words_ids", "bos_token_id", "decoder_start_token_id", "early_stopping", "eos_token_id", "forced_bos_token_id",
    "forced_eos_token_id", "gnmt_length_penalty", "length_penalty", "max_length", "max_new_tokens", "num_beams",
    "num_return_sequences", "output_scores", "pad_token_id", "renormalize_logits", "return_dict_in_generate",
    "temperature", "top_k", "top_p", "transformers_version", "use_cache", "_from_model_config",
}  # fmt: skip
# settings that are off at 1; all others are off at 0 or None
OFF_AT_1 = {"encoder_repetition_penalty", "num_beam_groups", "repetition_penalty"}


def check_generation(settings: GenerationConfig, config: PreTrainedConfig) -> None:
    """Raise a ValueError that names the generation settings that CTranslate2 does not support."""
    problems = [
        f"{name}={value!r}"
        for name, value in settings.to_diff_dict().items()
        if name not in FOLLOWED and value and not (name in OFF_AT_1 and value == 1)
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


def int8_overflows() -> bool:
    """Whether int8 products may overflow: CTranslate2 uses oneDNN (on AMD), and the processor has no VNNI."""
    capabilities = torch.cpu.get_capabilities()
    has_vnni = any(has for name, has in capabilities.items() if "vnni" in name)
    by_onednn = "AMD" in capabilities.get("cpu_name", "") and os.environ.get("CT2_USE_MKL") != "1"
    return by_onednn and not has_vnni


class CTranslate2Translator:
    """Translates with CTranslate2. It follows the model's generation config, but ends beam search by its own rule.

    The constructor converts the model; later changes of the model have no effect. Converting 65 million weights takes
    half a second of CPU time.

    Args:
        quantization: type of the weights, such as "int8"; float32 by default.

    Raises:
        ValueError: the model is not a translator, or CTranslate2 does not support its config or generation config.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, quantization: str | None = None):
        if not (model.config.is_encoder_decoder and model.can_generate()):
            raise ValueError(f"The engine ctranslate2 is for translators, and this is a {type(model).__name__}.")
        self.tokenizer, self.config, self.settings = tokenizer, model.config, cast(Any, model.generation_config)
        check_generation(self.settings, self.config)
        if (quantization or "").startswith("int8") and int8_overflows():
            logger.warning(
                "This processor has no int8 instructions (VNNI): int8 is hardly faster than float32 "
                "there, and some products overflow, which costs quality. Set CT2_USE_MKL=1 in the environment."
            )
        converter = ModelConverter(model, tokenizer)
        self.source_tokens, self.target_tokens = converter.tokens, converter.target_tokens
        self.target_ids = {token: i for i, token in enumerate(self.target_tokens)}
        device = model.device.type if model.device.type == "cuda" else "cpu"
        with TemporaryDirectory() as folder:
            self.translator = ctranslate2.Translator(
                converter.convert(str(Path(folder, "model")), quantization=quantization),
                device=device,
                device_index=model.device.index or 0,
                # Give each thread its own sentences: threads that share one would mostly wait for each other.
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
        """Translate a batch of strings. Blank strings stay blank; inputs too long for the model are truncated."""
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
        """Return the token ids and score of each hypothesis of each row, best first.

        A forced first token becomes a target prefix. Directly after a prefix, CTranslate2 ends a hypothesis only if
        the end token is the most probable token.

        Args:
            max_length: maximum number of tokens of a hypothesis, start token included, as in `generate`.
        """
        settings, beams = self.settings, num_beams or self.settings.num_beams or 1
        ends = settings.eos_token_id if isinstance(settings.eos_token_id, list) else [settings.eos_token_id]
        bad_words = [word for word in settings.bad_words_ids or [] if len(word) > 1 or word[0] not in ends]
        steps = min(max_length - 1, self.config.max_position_embeddings)
        start = [] if settings.forced_bos_token_id is None else [self.target_tokens[settings.forced_bos_token_id]]
        results = self.translator.translate_batch(
            [[self.source_tokens[i] for i in row] for row in rows],
            target_prefix=[start] * len(rows) if start else None,
            # Return all hypotheses with log-probabilities to rank them here: CTranslate2 lacks the paper's penalty.
            beam_size=beams,
            num_hypotheses=beams,
            length_penalty=0,
            return_scores=True,
            end_token=[self.target_tokens[i] for i in ends],
            return_end_token=True,
            max_input_length=0,
            min_decoding_length=0,
            max_decoding_length=steps - (settings.forced_eos_token_id is not None),  # `rank` appends a forced end
            suppress_sequences=[[self.target_tokens[i] for i in word] for word in bad_words],
            max_batch_size=-(-len(rows) // self.translator.num_translators),
        )
        return [self.rank(result.hypotheses, result.scores, length_penalty) for result in results]

    def rank(
        self, hypotheses: Iterable[list[str]], scores: Iterable[float], length_penalty: float | None
    ) -> list[tuple[list[int], float]]:
        """Sort hypotheses by their log-probability divided by the length penalty, and return token ids and scores."""
        alpha = self.settings.length_penalty if length_penalty is None else length_penalty
        alpha = 1.0 if alpha is None else alpha
        end, is_gnmt = self.settings.forced_eos_token_id, getattr(self.settings, "gnmt_length_penalty", False)
        ranked = []
        for tokens, score in zip(hypotheses, scores, strict=True):
            ids = [self.target_ids[token] for token in tokens]
            if end is not None and ids[-1] != end:
                ids.append(end)  # the end is forced, so its probability is 1
            penalty = ((5 + len(ids)) / 6) ** alpha if is_gnmt else len(ids) ** alpha
            ranked.append((ids, score / penalty))
        return sorted(ranked, key=lambda hypothesis: -hypothesis[1])
