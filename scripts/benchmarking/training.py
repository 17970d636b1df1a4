"""Measure training steps: the same batches for each model, in turns."""

import torch
from torch import Tensor, nn

from benchmarking.peers import Makers
from benchmarking.results import Result
from benchmarking.timing import Machine, in_turns
from vanilla_transformer.data.arguments import DataArguments
from vanilla_transformer.data.splits import load_splits, texts_of
from vanilla_transformer.data.tokenizer import train_tokenizer
from vanilla_transformer.modeling_vanilla_transformer import IGNORED_LABEL
from vanilla_transformer.tasks.translation import TranslationTask
from vanilla_transformer.training.trainer import send_batch


Inputs = dict[str, Tensor]
Batch = tuple[Inputs, int]  # inputs, and the number of tokens without padding


def real_lengths(data: DataArguments, rows: int = 1280) -> list[tuple[int, int]]:
    """Return source and target lengths of up to `rows` random training rows, in tokens."""
    train = load_splits(data, TranslationTask.data)["train"].shuffle(seed=0)
    tokenizer = train_tokenizer(texts_of(train.select(range(min(len(train), 5000))), TranslationTask.data))
    train = train.select(range(min(len(train), rows)))
    source, target = (tokenizer(list(train[side]))["input_ids"] for side in ("source", "target"))
    return [(len(a), len(b)) for a, b in zip(source, target, strict=True)]


class Batches:
    """Random token ids in sequences with the lengths of real data."""

    def __init__(self, lengths: list[tuple[int, int]], vocab_size: int, rows: int):
        self.lengths, self.vocab_size, self.rows = lengths, vocab_size, rows
        self.random = torch.Generator().manual_seed(0)

    def ids(self, lengths: list[int], padding: int) -> Tensor:
        ids = torch.full((len(lengths), max(lengths)), padding)
        for row, length in enumerate(lengths):
            ids[row, :length] = torch.randint(4, self.vocab_size, (length,), generator=self.random)
        return ids

    def pair(self, number: int) -> Batch:
        """Return a translator's inputs for one training step, and their number of tokens without padding."""
        start = number * self.rows % (len(self.lengths) - self.rows + 1)
        source, target = zip(*self.lengths[start : start + self.rows], strict=True)
        ids = self.ids(list(source), 0)
        labels = self.ids(list(target), IGNORED_LABEL)
        inputs = {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}
        return inputs, sum(source) + sum(target)

    def sentences(self, number: int) -> Batch:
        """Return a classifier's inputs for one training step, and their number of tokens without padding."""
        inputs, _ = self.pair(number)
        labels = torch.randint(2, (self.rows,), generator=self.random)
        return inputs | {"labels": labels}, int(inputs["attention_mask"].sum())


def block(vocab_size: int, rows: int, length: int) -> Batch:
    """Return a language model's inputs for one training step without padding, and their number of tokens."""
    ids = torch.randint(0, vocab_size, (rows, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids}, ids.numel()


class Trainee:
    """A model and its optimizer. Each call trains one step and returns its number of tokens without padding."""

    def __init__(self, model: nn.Module, batches: list[Batch], machine: Machine, precision: str):
        self.model, self.machine, self.precision = model.to(machine.device).train(), machine, precision
        self.batches = [(send_batch(inputs, torch.device(machine.device)), tokens) for inputs, tokens in batches]
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        self.step = 0

    def loss(self, inputs: Inputs) -> Tensor:
        with self.machine.autocast(self.precision):
            output = self.model(**inputs)
        return output if isinstance(output, Tensor) else output.loss

    def __call__(self) -> float:
        inputs, tokens = self.batches[self.step % len(self.batches)]
        self.step += 1
        self.loss(inputs).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return tokens


def measure_training(
    section: str, makers: Makers, batches: list[Batch], rounds: int, machine: Machine, precision: str
) -> list[Result]:
    """Measure the tokens per second of each model, without padding."""
    section = f"{section}, {precision}"
    trainees = {name: Trainee(make(), batches, machine, precision) for name, make in makers.items()}
    for trainee in trainees.values():  # warm up with every shape
        for _ in batches:
            trainee()
    return [Result(section, name, "tokens/s", rates) for name, rates in in_turns(machine, trainees, rounds).items()]
