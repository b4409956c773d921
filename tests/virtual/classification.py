"""A small classification in float64 that strategies are held against each other with."""

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.utils.data import TensorDataset

from manyhands.job import Job

SAMPLES, EPOCHS, SEED = 151, 3, 5
UNEVEN = "lognormal(0.1, cv=0.5)"
"""Compute times that differ from batch to batch."""

OPTIMIZERS = {
    "plain": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
}


def a_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def a_job(kind: str, batch: int = 37, *, validates: bool = True) -> Job:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
    data = TensorDataset(inputs, torch.randint(0, 3, (SAMPLES,), generator=generator))
    return Job(
        model=a_model,
        optimizer=OPTIMIZERS[kind],
        loss=F.cross_entropy,
        data=data,
        validation=data if validates else None,
        global_batch=batch,
        epochs=EPOCHS,
        seed=SEED,
        metrics=(),
    )
