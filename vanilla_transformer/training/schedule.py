"""The learning rate of the paper by step."""


class PaperSchedule:
    """Section 5.3, Equation 3, of a step counted from 1. The scheduler of PyTorch counts from 0."""

    def __init__(self, d_model: int, warmup_steps: int):
        self.d_model, self.warmup_steps = d_model, warmup_steps

    def __call__(self, steps_done: int) -> float:
        """The learning rate of the step after `steps_done` others."""
        step = steps_done + 1
        return self.d_model**-0.5 * min(step**-0.5, step * self.warmup_steps**-1.5)
