"""Word dropout: in training, a decoder has to do without some of the words that precede the one it is to predict."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class WordDropout(TrainerCallback):
    """Let a decoder read padding in the place of any of its tokens, with probability `rate`, while it trains.

    So Bowman et al. (2016, arXiv 1511.06349) keep a decoder from going by its own words alone: where data come again
    and again, it would know each text by its beginning. What it is to predict stays, and so does its start token.

    Raises:
        ValueError: when training begins, for a model that has no decoder, or no token for padding.
    """

    def __init__(self, rate: float):
        self.rate = rate
        self.hook: RemovableHandle | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Put it in front of the model's decoder."""
        model: PreTrainedModel = kwargs["model"]
        config = model.config
        if not model.can_generate():
            raise ValueError(f"word_dropout={self.rate} needs a decoder, which {type(model).__name__} has not.")
        if config.pad_token_id is None:
            raise ValueError(f"word_dropout={self.rate} hides words behind padding: set config.pad_token_id.")
        start = config.decoder_start_token_id if config.is_encoder_decoder else config.bos_token_id

        def hide(decoder: nn.Module, inputs: tuple, options: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
            ids: Tensor | None = options.get("input_ids")
            if decoder.training and ids is not None:
                hidden = (torch.rand(ids.shape, device=ids.device) < self.rate) & (ids != start)
                options = options | {"input_ids": ids.masked_fill(hidden, config.pad_token_id)}
            return inputs, options

        self.remove()  # what a run that was broken off has left
        self.hook = model.get_decoder().register_forward_pre_hook(hide, with_kwargs=True)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Leave the model as it was."""
        self.remove()

    def remove(self) -> None:
        """Take it away, if it is there."""
        if self.hook is not None:
            self.hook.remove()
            self.hook = None
