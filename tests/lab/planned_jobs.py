"""A small job with zeros for data, and a calibration without noise: what tests of plans rank."""

import dataclasses
from collections.abc import Iterable

import torch

import manyhands as mh

BATCH = 64
PARAMETERS = 1_000_000
"""Bytes of the parameters of the layer."""


def planned_job(rows: int = 1, **changes: object) -> mh.Job:
    """A layer of a million bytes, with a data set of so many global batches."""
    zeros = torch.zeros(1, 500).expand(rows * BATCH, 500)
    made = mh.Job(
        model=lambda: torch.nn.Linear(500, 500, bias=False),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.mse_loss,
        data=torch.utils.data.TensorDataset(zeros, zeros),
        global_batch=BATCH,
        epochs=100,
        metrics=(),
    )
    return dataclasses.replace(made, **changes)


def known_times(
    per_sample: float = 0.001, cv: float = 0.0, sizes: Iterable[int] = (8, BATCH), **known: object
) -> mh.Calibration:
    """Batches that take so many seconds for each sample, and what else is known."""
    compute = tuple(
        mh.ComputeTime(samples=n, seconds=per_sample * n, cv=cv, data=0.0, steps=9) for n in sizes
    )
    about = {"date": "", "job": "job", "parameters": PARAMETERS, "compute": compute}
    return mh.Calibration(**about | known)
