r"""The jobs of the course (docs/course): small enough for a laptop, each with a question.

    manyhands plan examples/course.py --job dense --assume "100 GFLOP/s" \
        --cluster "8 hosts of 1 worker, 1gbit"

is the first command of the course: would eight machines train this faster than one?
"""

from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh


def _sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


digits = mh.Job(
    model=lambda: mh.models.MLP(hidden=[64]),
    optimizer=_sgd,
    loss=F.cross_entropy,
    data=mh.data.mnist("train"),
    validation=mh.data.mnist("test"),
    evaluate_every=mh.every(samples=4_000),
    measures=("staleness", "spread"),
    global_batch=128,
    samples=12_000,
)
"""Parts 2 and 3: a network of 51 k parameters on MNIST, for many runs in a minute."""

dense = mh.Job(
    model=lambda: mh.models.MLP(hidden=[1024, 1024]),
    optimizer=_sgd,
    loss=F.cross_entropy,
    data=mh.data.mnist("train"),
    validation=mh.data.mnist("test"),
    global_batch=256,
    epochs=1,
)
"""Part 1: every parameter is used once per sample."""

convolutional = mh.Job(
    model=mh.models.LeNet,
    optimizer=_sgd,
    loss=F.cross_entropy,
    data=mh.data.mnist("train"),
    validation=mh.data.mnist("test"),
    global_batch=256,
    epochs=1,
)
"""Part 1: the parameters of a convolution are used at every place of the image."""

language = mh.Job(
    model=lambda: mh.models.GPT(vocabulary=65, length=64, width=128, layers=6, heads=4),
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3),
    loss=F.cross_entropy,
    data=mh.data.tinyshakespeare("train", length=64),
    validation=mh.data.tinyshakespeare("test", length=64),
    global_batch=32,
    samples=480,
)
"""Part 4: a GPT of six blocks, to be divided among workers."""


def tuned(
    lr: float = mh.free.log(1e-3, 1.0), momentum: float = mh.free.uniform(0.0, 0.95)
) -> mh.Job:
    """Part 5: the rate and the momentum of the network of parts 2 and 3 are free."""
    return replace(
        digits,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum),
        measures=(),
        samples=6_000,
    )
