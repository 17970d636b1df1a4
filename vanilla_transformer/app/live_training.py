"""Train a tiny encoder-decoder in the demo to reverse six digits. It fails if an essential part is removed."""

import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.app.reading import refusal
from vanilla_transformer.inside.interventions import Interventions, intervene
from vanilla_transformer.training.optimizer import PaperSchedule


DIGITS = 6
START, END, FIRST_DIGIT = 0, 1, 2  # token ids
BATCH, STEPS, STEPS_A_FRAME = 64, 500, 10
WARMUP = 100
TRIED = 32  # number of digit strings used to measure accuracy
LONGEST = 90  # maximum duration in seconds
SHOWN = torch.tensor([[3, 1, 4, 1, 5, 9]])


def with_end(digits: Tensor) -> Tensor:
    """Convert digits (batch, DIGITS) to token ids with an end token (batch, DIGITS + 1)."""
    return torch.cat([digits + FIRST_DIGIT, torch.full((len(digits), 1), END)], dim=1)


class Pupil:
    """A small model being trained.

    Args:
        heads: 1, 2, 4 or 8.
        positions: add position embeddings.
        warmup: warm up the learning rate, as in section 5.3.
        mask: use the causal mask.
        norm: "post", as in the paper, or "pre".
    """

    def __init__(self, heads: int, positions: bool, warmup: bool, mask: bool, norm: str, seed: int = 0):
        self.changes = Interventions(
            positions_off=frozenset() if positions else frozenset({"encoder", "decoder"}), causal_off=not mask
        )
        self.numbers = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.model: Any = VanillaTransformerForConditionalGeneration(
                VanillaTransformerConfig(
                    vocab_size=FIRST_DIGIT + 10, d_model=64, num_heads=heads, d_ff=128, encoder_layers=1,
                    decoder_layers=1, dropout=0.0, label_smoothing=0.0, norm_position=norm, pad_token_id=START,
                    bos_token_id=START, decoder_start_token_id=START, eos_token_id=END,
                    max_position_embeddings=DIGITS + 2, attn_implementation="eager",
                )
            )  # fmt: skip
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
        schedule = PaperSchedule(64, WARMUP if warmup else 1)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, schedule)
        self.tried = self.draw(TRIED)

    def draw(self, count: int) -> Tensor:
        return torch.randint(10, (count, DIGITS), generator=self.numbers)

    def learn(self, steps: int) -> float:
        """Train for `steps` steps and return the last loss."""
        self.model.train()
        loss = torch.tensor(0.0)
        for _ in range(steps):
            digits = self.draw(BATCH)
            loss = self.model(input_ids=with_end(digits), labels=with_end(digits.flip(1))).loss
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
        return loss.item()

    @torch.no_grad()
    def write(self, digits: Tensor) -> Tensor:
        """Decode greedily from input digits and return the generated token ids (batch, DIGITS)."""
        written = torch.full((len(digits), 1), START)
        for _ in range(DIGITS):
            output = self.model(input_ids=with_end(digits), decoder_input_ids=written, use_cache=False)
            written = torch.cat([written, output.logits[:, -1:].argmax(-1)], dim=1)
        return written[:, 1:] - FIRST_DIGIT

    @torch.no_grad()
    def frame(self, step: int, loss: float | None) -> dict[str, Any]:
        """Return the data to draw after a training step."""
        self.model.eval()
        with intervene(self.model, self.changes) as trace:
            right = (self.write(self.tried) == self.tried.flip(1)).all(dim=1).float().mean().item()
            written = self.write(SHOWN)
            self.model(input_ids=with_end(SHOWN), labels=with_end(written))
        weights = trace.attention["cross", 0][0]
        return {
            "step": step,
            "steps": STEPS,
            "loss": None if loss is None or math.isnan(loss) else round(loss, 4),
            "right": round(right, 4),
            "text": "".join(map(str, SHOWN[0].tolist())),
            "written": "".join(str(digit) if digit >= 0 else "·" for digit in written[0].tolist()),
            "attention": (weights * 1000).round().to(torch.int16).tolist(),
        }


def train_live(
    heads: int = 4, positions: bool = True, warmup: bool = True, mask: bool = True, norm: str = "post"
) -> Iterator[dict[str, Any]]:
    """Train a tiny encoder-decoder for some seconds, and yield the data to draw every few steps."""
    if heads not in (1, 2, 4, 8) or norm not in ("post", "pre"):
        raise refusal("There are 1, 2, 4 or 8 heads, and the norm is post or pre.")
    pupil = Pupil(heads, bool(positions), bool(warmup), bool(mask), norm)
    began = time.monotonic()
    yield pupil.frame(0, None)
    for step in range(STEPS_A_FRAME, STEPS + 1, STEPS_A_FRAME):
        with intervene(pupil.model, pupil.changes):
            loss = pupil.learn(STEPS_A_FRAME)
        yield pupil.frame(step, loss)
        if time.monotonic() - began > LONGEST:
            return
