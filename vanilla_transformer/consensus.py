"""Of several translations of a text the one that is likely, and like the others: decoding for the least Bayes risk."""

from typing import Any, cast

import numpy as np
import torch
from sacrebleu.metrics import BLEU
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation import GenerateBeamEncoderDecoderOutput


TOKEN_BLEU = BLEU(tokenize="none", effective_order=True, force=True)  # of one sentence, smoothed
NO_SCORE = -1e5  # the library's, where a search has found fewer hypotheses than it has beams, is far below


def likeness(hypotheses: list[list[int]]) -> np.ndarray:
    """(hypotheses,) the mean BLEU of each with all of them, over tokens: 0 to 1, in any language."""
    texts = [" ".join(map(str, tokens)) for tokens in hypotheses]
    bleu = [[TOKEN_BLEU.sentence_score(text, [other]).score / 100 for other in texts] for text in texts]
    return np.array(bleu).mean(axis=1)


def choose(hypotheses: list[list[int]], scores: list[float], weight: float) -> int:
    """The number of the hypothesis with the highest score + weight * likeness.

    The likeliest hypothesis is one of many that are nearly as likely, and may be like none of them. If each may be
    the right one, the likeness of a hypothesis is the BLEU that is to be expected of it: one minus its Bayes risk
    (Kumar and Byrne 2004).
    """
    real = [i for i, score in enumerate(scores) if score > NO_SCORE] or [0]
    values = np.array([scores[i] for i in real]) + weight * likeness([hypotheses[i] for i in real])
    return real[int(values.argmax())]


@torch.inference_mode()
def generate_consensus(
    model: PreTrainedModel, batch: dict[str, Tensor], weight: float, special_ids: list[int], **options: Any
) -> Tensor:
    """What `model.generate(**batch, **options)` returns, but of all beams of each text the one that `choose` takes.

    Args:
        weight: of likeness, beside a score log P / penalty; 1 is a good start.
        special_ids: tokens that are no part of what is compared.

    Returns:
        (batch, length) tokens.

    Raises:
        ValueError: a negative weight; a single beam, which is nobody's consensus.
    """
    if weight < 0:
        raise ValueError(f"consensus={weight} must not be negative; 0 takes the beam with the best score.")
    num_beams = options.get("num_beams") or model.generation_config.num_beams or 1
    if num_beams < 2:
        raise ValueError(
            f"consensus={weight} chooses among beams, of which there is {num_beams}: give --num_beams 10."
        )
    all_beams = {"num_return_sequences": num_beams, "return_dict_in_generate": True, "output_scores": True}
    output = cast(GenerateBeamEncoderDecoderOutput, cast(Any, model).generate(**batch, **options, **all_beams))
    sequences, scores = output.sequences, cast(Tensor, output.sequences_scores)
    chosen = []
    for start in range(0, len(sequences), num_beams):
        rows = sequences[start : start + num_beams].tolist()
        hypotheses = [[token for token in row if token not in special_ids] for row in rows]
        chosen.append(start + choose(hypotheses, scores[start : start + num_beams].tolist(), weight))
    return sequences[chosen]
