"""A small job with free parameters: a network with dropout, on points of three classes."""

import os
import pathlib

import torch
from torch import nn

import manyhands as mh

generator = torch.Generator().manual_seed(1)
points = torch.randn(512, 8, generator=generator)
kinds = (points[:, :3] + 0.3 * torch.randn(512, 3, generator=generator)).argmax(1)
data = torch.utils.data.TensorDataset(points[:384], kinds[:384])
validation = torch.utils.data.TensorDataset(points[384:], kinds[384:])


def job(
    lr=mh.free.log(1e-3, 1.0),
    momentum=mh.free.uniform(0.0, 0.95),
    width=mh.free.choice(8, 16, 32),
    strategy=mh.free.choice("single()", "allreduce()", "asynchronous()", start="single()"),
):
    """A network of this width."""
    if "NOTE_VALUES" in os.environ:
        # Every process of a trial notes what it was called with.
        path = pathlib.Path(os.environ["NOTE_VALUES"]) / f"{os.getpid()}-{strategy}.txt"
        path.write_text(repr((lr, momentum, width, strategy)))
    return mh.Job(
        model=lambda: nn.Sequential(
            nn.Linear(8, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 3)
        ),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum),
        loss=nn.functional.cross_entropy,
        data=data,
        validation=validation,
        global_batch=32,
        epochs=4,
    )


def strategies(strategy=mh.free.choice("allreduce()", "asynchronous()"), lr=mh.free.log(0.01, 0.1)):
    """The same network, under one of two strategies."""
    return job(lr=lr, momentum=0.5, width=8, strategy=strategy)


def alone(
    lr=mh.free.log(1e-3, 1.0),
    momentum=mh.free.uniform(0.0, 0.95),
    width=mh.free.choice(8, 16, 32),
):
    """The same network, on one worker."""
    return job(lr=lr, momentum=momentum, width=width, strategy="single()")
