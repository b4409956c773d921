"""The script of the runs of `benchmarks.elastic`: a small model, evaluated and stored."""

import time

import torch
from torch import nn

import manyhands as mh


def paced(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss that takes its time, so that a run lasts for some seconds on any machine."""
    if torch.is_grad_enabled():
        time.sleep(0.005)
    return nn.functional.cross_entropy(outputs, targets)


_made = torch.Generator().manual_seed(0)
_data = torch.utils.data.TensorDataset(
    torch.randn(4000, 64, generator=_made), torch.randint(0, 10, (4000,), generator=_made)
)
job = mh.Job(
    model=lambda: nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)),
    optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
    loss=paced,
    data=_data,
    validation=_data,
    global_batch=80,
    epochs=30,
)
