"""The job of `benchmarks.shares`: computing is paced, 4 ms for each sample."""

import time

import torch
from torch.nn.functional import cross_entropy

import manyhands as mh

PER_SAMPLE = 0.004
BATCH = 256

_source = torch.Generator().manual_seed(0)
_inputs = torch.randn(32 * BATCH, 32, generator=_source)
_targets = torch.randint(0, 10, (32 * BATCH,), generator=_source)


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy, after as long as the samples take."""
    if torch.is_grad_enabled():
        time.sleep(PER_SAMPLE * len(targets))
    return cross_entropy(outputs, targets)


job = mh.Job(
    model=lambda: torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10)
    ),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    loss=loss,
    data=torch.utils.data.TensorDataset(_inputs, _targets),
    global_batch=BATCH,
    epochs=3,
    metrics=(),
)
