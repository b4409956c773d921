"""One side of `benchmarks.sharding`: a small GPT as a Manyhands job."""

import os

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh
from benchmarks.turnstile import loop as loop  # noqa: PLC0414 - taken by its name

BATCH = 8
LENGTH = 64


def model() -> torch.nn.Module:
    """3.3 million parameters."""
    return mh.models.GPT(vocabulary=256, length=LENGTH, width=256, layers=4, heads=8)


def data() -> torch.utils.data.TensorDataset:
    """Random tokens: this benchmark is about time."""
    tokens = torch.randint(0, 256, (4096, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    return torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:])


job = mh.Job(
    model=model,
    optimizer=lambda module: torch.optim.AdamW(module.parameters(), lr=1e-3),
    loss=F.cross_entropy,
    data=data(),
    metrics=(),
    global_batch=BATCH,
    epochs=10_000,
)

if __name__ == "__main__":
    how = os.environ["OVERHEAD_OF"]
    mh.train(job, how, workers=2, loop=loop, output=os.environ["OVERHEAD_OUTPUT"])
