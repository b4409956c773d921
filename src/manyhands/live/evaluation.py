"""Exact evaluation by all workers together.

Every metric is a function of statistics that sum over samples, so each worker computes them on
its part and one collective adds them up: the result does not depend on how many took part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from manyhands.live.loading import as_pair, batches, move
from manyhands.parts import part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from manyhands.job import Job
    from manyhands.metrics import Metric
    from manyhands.transport.collectives import Group


@dataclass(frozen=True, eq=False)
class Totals:
    """Summed statistics: samples, loss, then each metric's."""

    tensor: torch.Tensor
    metrics: tuple[Metric, ...]
    sizes: tuple[int, ...]

    def values(self) -> dict[str, float]:
        """What the statistics say."""
        samples, loss, *_ = self.tensor.tolist()
        values = {"loss": loss / samples}
        parts = self.tensor[2:].cpu().split_with_sizes(list(self.sizes))
        for metric, statistics in zip(self.metrics, parts, strict=True):
            values[metric.name] = metric.value(statistics)
        return values


@torch.no_grad()
def evaluate(job: Job, model: nn.Module, device: torch.device, rank: int, workers: int) -> Totals:
    """One worker's part of the statistics of the model on the job's validation data.

    A worker whose part is empty still computes one batch, to know how many statistics there
    are, and counts it as nothing.
    """
    data = job.validation
    if data is None:
        raise ValueError("this job has no validation data to evaluate on")
    if not len(data):
        raise ValueError("the validation data is empty")
    mine = torch.arange(len(data))[part(len(data), rank, workers)]
    counted = len(mine) > 0
    wanted = list(_chunks(mine if counted else torch.zeros(1, dtype=torch.int64), job, workers))
    training = model.training
    model.eval()
    total: torch.Tensor | None = None
    sizes: tuple[int, ...] = ()
    for indices, batch in zip(wanted, batches(job, data, wanted), strict=True):
        inputs, targets = as_pair(move(batch, device))
        outputs = model(inputs)
        loss = job.loss(outputs, targets).double().reshape(()) * len(indices)
        statistics = [metric.statistics(outputs, targets) for metric in job.measures]
        sizes = tuple(item.numel() for item in statistics)
        head = torch.stack([torch.tensor(float(len(indices)), device=device).double(), loss])
        row = torch.cat([head, *statistics])
        total = row if total is None else total + row
    model.train(training)
    if total is None:
        raise RuntimeError("no batch came from the validation data")
    return Totals(total if counted else torch.zeros_like(total), job.measures, sizes)


def _chunks(indices: torch.Tensor, job: Job, workers: int) -> Iterator[torch.Tensor]:
    size = max(1, job.batch_sizes.at(0) // workers)
    yield from torch.split(indices, size)


@torch.no_grad()
def average_buffers(model: nn.Module, group: Group) -> None:
    """Make the buffers of all replicas alike: floating ones their mean, others the first's.

    Batch-norm statistics are running means, so their mean over workers is the running mean over
    all the workers' batches. Counters are the same everywhere.
    """
    if group.size == 1:
        return
    floating = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if floating:
        flat = torch.cat([buffer.reshape(-1).double() for buffer in floating])
        group.sum(flat)
        flat /= group.size
        sizes = [buffer.numel() for buffer in floating]
        for buffer, mean in zip(floating, flat.split_with_sizes(sizes), strict=True):
            buffer.copy_(mean.view_as(buffer))
    for buffer in model.buffers():
        if not buffer.is_floating_point():
            group.broadcast(buffer)
