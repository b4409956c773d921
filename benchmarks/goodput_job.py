"""The job of `benchmarks.goodput`: a step takes 50 ms and next to no processor time."""

import time

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy, after a while."""
    time.sleep(0.05)
    return F.cross_entropy(outputs, targets)


job = mh.Job(
    model=lambda: torch.nn.Linear(100, 10),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-3),
    loss=loss,
    data=torch.utils.data.TensorDataset(
        torch.zeros(3200, 100), torch.zeros(3200, dtype=torch.long)
    ),
    global_batch=32,
    epochs=1,
    metrics=(),
)
