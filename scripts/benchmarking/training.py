"""Measure the speed and memory of training steps. Models take turns on the same batches."""

import torch
from torch import Tensor, nn

from benchmarking.peers import Makers, Size, translators
from benchmarking.results import Result
from benchmarking.timing import in_turns, peak_memory, seconds
from vanilla_transformer import VanillaTransformerDecoderConfig, VanillaTransformerDecoderModel
from vanilla_transformer.data.arguments import DataArguments
from vanilla_transformer.data.splits import load_splits, texts_of
from vanilla_transformer.data.tokenizer import train_tokenizer
from vanilla_transformer.modeling_vanilla_transformer import IGNORED_LABEL
from vanilla_transformer.tasks.translation import TranslationTask
from vanilla_transformer.training.trainer import send_batch


Inputs = dict[str, Tensor]
Batch = tuple[Inputs, int]  # (model inputs, number of tokens without padding)


def real_lengths(data: DataArguments, rows: int = 1280) -> list[tuple[int, int]]:
    """Return the source and target lengths, in tokens, of up to `rows` random training examples."""
    train = load_splits(data, TranslationTask.data)["train"].shuffle(seed=0)
    tokenizer = train_tokenizer(texts_of(train.select(range(min(len(train), 5000))), TranslationTask.data))
    train = train.select(range(min(len(train), rows)))
    source, target = (tokenizer(list(train[side]))["input_ids"] for side in ("source", "target"))
    return [(len(a), len(b)) for a, b in zip(source, target, strict=True)]


class Batches:
    """Batches of random tokens with the given (source, target) sequence lengths."""

    def __init__(self, lengths: list[tuple[int, int]], vocab_size: int, rows: int):
        self.lengths, self.vocab_size, self.rows = lengths, vocab_size, rows
        self.random = torch.Generator().manual_seed(0)

    def ids(self, lengths: list[int], padding: int) -> Tensor:
        ids = torch.full((len(lengths), max(lengths)), padding)
        for row, length in enumerate(lengths):
            ids[row, :length] = torch.randint(4, self.vocab_size, (length,), generator=self.random)
        return ids

    def pair(self, number: int) -> Batch:
        """Return batch `number` for training a translation model."""
        start = number * self.rows % (len(self.lengths) - self.rows + 1)
        source, target = zip(*self.lengths[start : start + self.rows], strict=True)
        ids = self.ids(list(source), 0)
        labels = self.ids(list(target), IGNORED_LABEL)
        inputs = {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}
        return inputs, sum(source) + sum(target)

    def sentences(self, number: int) -> Batch:
        """Return batch `number` for training a classifier."""
        inputs, _ = self.pair(number)
        labels = torch.randint(2, (self.rows,), generator=self.random)
        return inputs | {"labels": labels}, int(inputs["attention_mask"].sum())


def block(vocab_size: int, rows: int, length: int) -> Batch:
    """Return a batch without padding for training a language model."""
    ids = torch.randint(0, vocab_size, (rows, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids}, ids.numel()


class Trainee:
    """A model with its optimiser. Each call runs one training step and returns its token count without padding."""

    def __init__(self, model: nn.Module, batches: list[Batch], device: str, precision: str):
        self.model = model.to(device).train()
        self.batches = [(send_batch(inputs, torch.device(device)), tokens) for inputs, tokens in batches]
        self.autocast = torch.autocast(device, torch.bfloat16, enabled=precision == "bf16")
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        self.step = 0

    def loss(self, inputs: Inputs) -> Tensor:
        with self.autocast:
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
    section: str, makers: Makers, batches: list[Batch], rounds: int, device: str, precision: str
) -> list[Result]:
    """Return tokens per second, not counting padding, for each model."""
    trainees = {name: Trainee(make(), batches, device, precision) for name, make in makers.items()}
    for trainee in trainees.values():  # warm up with every batch shape
        for _ in batches:
            trainee()
    section = f"{section}, {precision}"
    return [Result(section, name, "tokens/s", rates) for name, rates in in_turns(trainees, rounds, device).items()]


def measure_memory(size: Size, rows: int, length: int) -> list[Result]:
    """Return the CPU memory in MiB that a training step needs in addition to the weights and gradients."""
    results = []
    ids = torch.randint(4, size.vocab_size, (rows, length))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    for name, make in translators(size).items():
        trainee = Trainee(make(), [], "cpu", "fp32")
        trainee.loss(batch).backward()  # allocate the gradients
        used = peak_memory(lambda t=trainee: t.loss(batch).backward())
        results.append(Result(f"memory of a step, vocabulary {size.vocab_size:,}", name, "MiB", [used / 2**20]))
    return results


def measure_length(size: Size, lengths: list[int], window: int, device: str) -> list[Result]:
    """Return the seconds per forward and backward pass over one sequence, with and without a sliding window."""
    results = []
    for length in lengths:
        ids = torch.randint(size.vocab_size, (1, length), device=device)
        for name, sliding_window in (("full attention", None), (f"window of {window}", window)):
            fields = size.fields(num_layers=size.layers)
            config = VanillaTransformerDecoderConfig(**fields, sliding_window=sliding_window)
            model = VanillaTransformerDecoderModel(config).to(device).train()

            def step(model: nn.Module = model, ids: Tensor = ids) -> None:
                model(input_ids=ids, use_cache=False).last_hidden_state.sum().backward()

            step()
            values = [seconds(step, device) for _ in range(3)]
            results.append(Result(f"time at length {length:,}", name, "seconds", values))
    return results
