"""The job of `benchmarks.goodput`: a step takes 50 ms and next to no processor time.

The model is its own log of the data: a number for each sample, which every update that holds the
sample raises by exactly 1. A lost or doubled update shows, and which samples it had.
"""

import time

import torch

import manyhands as mh

SAMPLES, BATCH = 3200, 32


class Counts(torch.nn.Module):
    """How often each sample was trained on, as whole numbers in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.count = torch.nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """The counts of some samples."""
        return self.count[samples]


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss whose gradient is the same for every sample, after a while."""
    del targets
    time.sleep(0.05)
    return -outputs.mean()


job = mh.Job(
    model=Counts,
    # An update of b samples counts b / BATCH, and has -1 / b for each of them.
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=float(BATCH)),
    loss=loss,
    data=torch.utils.data.TensorDataset(torch.arange(SAMPLES), torch.zeros(SAMPLES)),
    global_batch=BATCH,
    epochs=1,
    metrics=(),
)
