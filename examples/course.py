"""The jobs of the course (docs/course): small enough for a laptop, each with a question.

manyhands plan examples/course.py --job dense --assume "100 GFLOP/s" \
    --cluster "8 hosts of 1 worker, 1gbit"

is the first command of the course: would eight machines train this faster than one?
"""

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
