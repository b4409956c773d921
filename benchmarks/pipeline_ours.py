"""A pipeline of two stages, as a Manyhands job: one side of `benchmarks.overhead`."""

import os

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh
from benchmarks.turnstile import loop as loop  # noqa: PLC0414 - taken by its name

BATCH, MICROBATCHES = 16, 4
LENGTH, SAMPLES = 64, 2048


def model() -> torch.nn.Module:
    """A GPT of four blocks, 0.8 M parameters."""
    return mh.models.GPT(length=LENGTH, width=128, layers=4, heads=4)


def data() -> torch.utils.data.TensorDataset:
    """Random tokens: this benchmark is about time."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 65, (SAMPLES, LENGTH + 1), generator=generator)
    return torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:])


job = mh.Job(
    model=model,
    optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9),
    loss=F.cross_entropy,
    data=data(),
    global_batch=BATCH,
    epochs=10_000,
)

if __name__ == "__main__":
    strategy = f'pipeline(microbatches={MICROBATCHES}, split_points=["block3"])'
    mh.train(job, strategy, workers=2, loop=loop, output=os.environ["OVERHEAD_OUTPUT"])
