"""Exact evaluation, divided among all workers.

Every metric is a function of statistics that sum over samples, so each worker computes them on
its part and one collective adds them up: the result does not depend on the number of workers.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from manyhands.live.worker.loading import Loading, move
from manyhands.parameters.gradients import evaluate_batch
from manyhands.parameters.weights.loss_weight import loss_values, measuring
from manyhands.sampling.division import part
from manyhands.seeding import VALIDATION

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from manyhands.job import Job
    from manyhands.metrics import Metric
    from manyhands.transport.collectives import Group


@dataclass(frozen=True, eq=False)
class MetricTotals:
    """Summed statistics: number of counted targets, their loss, then those of each metric.

    If there are several objectives, the first two are there for each of them.
    """

    tensor: torch.Tensor
    metrics: tuple[Metric, ...]
    sizes: tuple[int, ...]
    objectives: tuple[str, ...] = ()

    @property
    def head(self) -> int:
        """Number of statistics before those of metrics."""
        return 2 * max(1, len(self.objectives))

    def values(self) -> dict[str, float]:
        """The loss and the metrics."""
        values = loss_values(self.tensor[: self.head].tolist(), self.objectives)
        parts = self.tensor[self.head :].cpu().split_with_sizes(list(self.sizes))
        for metric, statistics in zip(self.metrics, parts, strict=True):
            values[metric.name] = metric.value(statistics)
        return values


@torch.no_grad()
def evaluate(
    job: Job,
    model: nn.Module,
    device: torch.device,
    rank: int,
    workers: int,
    outputs: Callable[[Any], Any] | None = None,
    *,
    loading: Loading | None = None,
    divided: int | None = None,
    speaks: bool = True,
) -> MetricTotals:
    """Compute one worker's statistics of the model on its part of the validation data.

    All workers compute the same number of batches, because workers that hold parts of one model
    need each other for every batch; surplus batches count as zero.

    Args:
        job: the job.
        model: the model, which is in evaluation mode meanwhile.
        device: the worker's device.
        rank: index of the part of the data.
        workers: number of parts.
        outputs: called instead of the model; returns None on workers without the outputs. With
            an objective, what stands for the model.
        loading: loads the batches; its processes are kept between evaluations.
        divided: number of workers among which a batch is divided, if more than `workers`.
        speaks: whether this worker's statistics count; it computes in any case.
    """
    data = job.validation
    if data is None:
        raise ValueError("this job has no validation data to evaluate on")
    if not len(data):
        raise ValueError("the validation data is empty")
    chunks, counted = _chunks(len(data), rank, workers, job, divided or workers)
    training = model.training
    model.eval()
    total = torch.zeros(0, dtype=torch.float64, device=device)
    sizes = (0,) * len(job.metric_objects)
    measured = measuring(job)
    drawn = [(VALIDATION, indices) for indices in chunks]
    loaded = (loading or Loading(job)).batches(data, drawn)
    for count, batch in zip(counted, loaded, strict=True):
        inputs, targets = job.divide(move(batch, device))
        found = evaluate_batch(job, measured, device, outputs or model, inputs, targets)
        if found is None or not speaks:
            continue
        losses, answers, wanted = found
        statistics = [metric.statistics(answers, wanted) for metric in job.metric_objects]
        sizes = tuple(item.numel() for item in statistics)
        head = [one.sums(loss, count or 1) for one, loss in zip(measured, losses, strict=True)]
        row = torch.cat([*head, *statistics])
        if not count:
            row = torch.zeros_like(row)
        total = total + row if len(total) else row
    model.train(training)
    return MetricTotals(total, job.metric_objects, sizes, job.objective_names)


def no_totals(
    job: Job, model: nn.Module, device: torch.device, loading: Loading | None = None
) -> MetricTotals:
    """The statistics of no samples, for a worker that has no part in an evaluation.

    Only the metrics know how many statistics there are, so they are computed for one sample.
    """
    one = evaluate(job, model, device, 0, len(job.validation or ()), loading=loading)
    return replace(one, tensor=torch.zeros_like(one.tensor))


def sum_totals(totals: MetricTotals, group: Group) -> MetricTotals:
    """Sum the statistics over all workers, including those without outputs."""
    seen = len(totals.tensor) > 0
    shapes = torch.tensor([int(seen), *totals.sizes], device=totals.tensor.device)
    group.sum_small(shapes)
    holders, *summed = shapes.tolist()
    sizes = tuple(size // holders for size in summed)
    tensor = totals.tensor if seen else totals.tensor.new_zeros(totals.head + sum(sizes))
    group.sum(tensor)
    return replace(totals, tensor=tensor, sizes=sizes)


def _chunks(
    samples: int, rank: int, workers: int, job: Job, divided: int
) -> tuple[list[torch.Tensor], list[int]]:
    """The batches of one worker, and the number of samples that count in each: all or none."""
    size = max(1, min(job.micro_batch or sys.maxsize, job.batch_sizes.at(0) // divided))
    mine = torch.arange(samples)[part(samples, rank, workers)]
    wanted = list(torch.split(mine, size)) if len(mine) else []
    counted = [len(indices) for indices in wanted]
    # Parts differ by at most one sample, so a worker may have one batch less than the first.
    longest = torch.arange(samples)[part(samples, 0, workers)]
    for spare in torch.split(longest, size)[len(wanted) :]:
        wanted.append(spare)
        counted.append(0)
    return wanted, counted
