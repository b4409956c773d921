"""What every side trains. Needs torch and the turnstile, and nothing else."""

import contextlib
import os
import socket
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from benchmarks.turnstile import Turnstile

BATCH = 32
"""Samples in a worker's update."""
WORKERS = 2
SAMPLES = 4096
LAYERS = {
    "85k": (784, 100, 64, 10),
    "1M": (784, 800, 450, 10),
    "10M": (784, 2048, 2048, 2048, 10),
}


def model(size: str) -> nn.Sequential:
    """A perceptron of about so many parameters."""
    layers: list[nn.Module] = []
    for before, after in pairwise(LAYERS[size]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    # What comes out are logits: there is no ReLU after the last layer.
    return nn.Sequential(*layers[:-1])


def optimizer(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Random samples: these benchmarks are about time."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 784, generator=generator)
    return inputs, torch.randint(0, 10, (SAMPLES,), generator=generator)


def batches(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """A peer worker's batches in random order, each when it is its side's turn."""
    turnstile = next_turnstile()
    inputs, targets = data()
    generator = torch.Generator().manual_seed(seed)
    while True:
        for chosen in torch.randperm(SAMPLES, generator=generator).split(BATCH):
            if not turnstile.step():
                return
            yield inputs[chosen], targets[chosen]


def next_turnstile() -> Turnstile:
    """A worker's own turnstile: the first of its side's that nobody has taken yet."""
    for path in os.environ["TURNSTILES"].split(":"):
        with contextlib.suppress(FileExistsError):
            Path(f"{path}.taken").touch(exist_ok=False)
            return Turnstile(path)
    raise RuntimeError("this side has more workers than turnstiles")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
