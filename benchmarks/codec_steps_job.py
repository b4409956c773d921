"""The job of `benchmarks.codec_steps`: LeNet on random digits."""

import os

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh

BATCH = 32
EPOCH = 8
"""Steps of an epoch; speed is measured without the first epoch and the last."""


def data() -> torch.utils.data.TensorDataset:
    """Random digits: this benchmark is about time."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(BATCH * EPOCH, 1, 28, 28, generator=generator)
    return torch.utils.data.TensorDataset(
        inputs, torch.randint(0, 10, (len(inputs),), generator=generator)
    )


job = mh.Job(
    model=mh.models.LeNet,
    optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=0.01),
    loss=F.cross_entropy,
    data=data(),
    global_batch=BATCH,
    epochs=int(os.environ.get("CODECS_EPOCHS", "3")),
    metrics=(),
)
