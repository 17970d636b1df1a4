"""The learning rate of the paper by step."""


class PaperSchedule:
    """The learning rate of section 5.3, Equation 3, whose steps count from 1; PyTorch's schedulers count from 0."""

    def __init__(self, d_model: int, warmup_steps: int):
        self.d_model, self.warmup_steps = d_model, warmup_steps

    def __call__(self, steps_done: int) -> float:
        """The learning rate of the step after `steps_done` others."""
        step = steps_done + 1
        return self.d_model**-0.5 * min(step**-0.5, step * self.warmup_steps**-1.5)
