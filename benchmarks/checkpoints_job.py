"""The job of `benchmarks.checkpoints`: a perceptron with 10 M parameters, SGD with momentum."""

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh

BATCH = 256
"""Samples of a step, of all workers together."""
EPOCH = 10
"""Steps of an epoch; speed is measured without the first epoch and the last."""


def data() -> torch.utils.data.TensorDataset:
    """Random digits: this benchmark is about time."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(BATCH * EPOCH, 1, 28, 28, generator=generator)
    return torch.utils.data.TensorDataset(
        inputs, torch.randint(0, 10, (len(inputs),), generator=generator)
    )


job = mh.Job(
    model=lambda: mh.models.MLP(784, (2048, 2048, 2048), 10),
    optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9),
    loss=F.cross_entropy,
    data=data(),
    global_batch=BATCH,
    epochs=6,
    metrics=(),
)
