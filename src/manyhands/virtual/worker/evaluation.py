"""Evaluation of a model on a job's validation data, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from manyhands.parameters.gradients import evaluate_batch
from manyhands.parameters.weights.loss_weight import loss_values, measuring
from manyhands.seeding import VALIDATION, Seeded
from manyhands.virtual.worker.loading import loader

if TYPE_CHECKING:
    from torch import nn

    from manyhands.job import Job


@torch.no_grad()
def evaluate(job: Job, model: nn.Module) -> dict[str, float]:
    """The loss and the job's metrics, computed from sums over batches."""
    data = job.validation
    if data is None:
        raise ValueError("the job has no validation data: set Job(validation=...)")
    if not len(data):
        raise ValueError("the validation data is empty")
    load = loader(job, Seeded(data, job.collate_fn))
    training = model.training
    model.eval()
    measured = measuring(job)
    sums = torch.zeros(2 * len(measured), dtype=torch.float64)
    totals: list[torch.Tensor] = []
    for indices in torch.split(torch.arange(len(data)), job.batch_sizes.at(0)):
        inputs, targets = load(VALIDATION, indices)
        found = evaluate_batch(job, measured, torch.device("cpu"), model, inputs, targets)
        if found is None:
            raise TypeError("the model returned no outputs")
        losses, outputs, wanted = found
        pairs = zip(measured, losses, strict=True)
        sums += torch.cat([one.sums(loss, len(indices)) for one, loss in pairs])
        statistics = [metric.statistics(outputs, wanted) for metric in job.metric_objects]
        if totals:
            statistics = [total + more for total, more in zip(totals, statistics, strict=True)]
        totals = statistics
    model.train(training)
    values = loss_values(sums.tolist(), job.objective_names)
    for metric, total in zip(job.metric_objects, totals, strict=True):
        values[metric.name] = metric.value(total)
    return values
