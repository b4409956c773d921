"""Optimizer steps with the settings of their batch: a weight on the learning rate, a scheduler.

A torch `LRScheduler` is used as a table: what it sets in an optimizer's groups, by position in the
run. Every worker and every server needs the settings of the batch that it steps with, and these
come in no order. So the scheduler is not attached to an optimizer that trains: it steps an empty
one with the same groups, ahead of the run, and what it sets is looked up by the samples before a
batch.
"""

from __future__ import annotations

import warnings
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

if TYPE_CHECKING:
    from manyhands.job import Job


def weighted_step(optimizer: torch.optim.Optimizer, weight: float) -> None:
    """Take an optimizer step with the learning rates multiplied by `weight`.

    An update from b samples has the weight b / global batch, times the factor of the learning-rate
    schedule. Scaling the gradient instead would have no effect under Adam, which divides by the
    gradient's own magnitude.
    """
    if _is_plain(optimizer):
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.add_(parameter.grad, alpha=-(group["lr"] * weight))
        return
    if weight == 1:
        optimizer.step()
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * weight
    try:
        optimizer.step()
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def _is_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step is p ← p − lr·g, which `step` computes in several times as long."""
    if type(optimizer) is not torch.optim.SGD or "step" in vars(optimizer):
        return False
    if any(getattr(optimizer, hooks, True) for hooks in _HOOKS):
        return False
    return all(
        not any(group.get(name, True) for name in _SETTINGS) and isinstance(group["lr"], float)
        for group in optimizer.param_groups
    )


_SETTINGS = (
    *("momentum", "weight_decay", "nesterov", "maximize"),
    *("foreach", "fused", "differentiable"),
)
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class GroupSchedule:
    """What a job's scheduler sets in each parameter group: learning rates, momentum, betas.

    Args:
        job: the job with an `lr_scheduler`.
        optimizer: an optimizer of the job, from whose groups it starts.

    Raises:
        TypeError: `lr_scheduler` returned no scheduler, or one that depends on a metric.
    """

    def __init__(self, job: Job, optimizer: torch.optim.Optimizer) -> None:
        if job.lr_scheduler is None:
            raise TypeError("the job has no lr_scheduler")
        self._empty = EmptyOptimizer(optimizer)
        self._scheduler = job.lr_scheduler(self._empty)
        _check(self._scheduler)
        self._rows = [self._settings()]
        self._by_epoch = job.scheduler_interval == "epoch"
        self._samples, self._sizes = job.epoch_samples, job.batch_sizes
        self._starts = [0]
        """By step, the samples of the run before it, if the size of a batch changes."""

    @staticmethod
    def of(job: Job, optimizer: torch.optim.Optimizer) -> GroupSchedule | None:
        """The schedule of a job; None if it has none."""
        return None if job.lr_scheduler is None else GroupSchedule(job, optimizer)

    def apply(self, optimizer: torch.optim.Optimizer, dealt: int) -> None:
        """Set the groups of an optimizer for a batch that begins after `dealt` samples."""
        row = self._row(dealt // self._samples if self._by_epoch else self._step(dealt))
        for group, settings in zip(optimizer.param_groups, row, strict=True):
            group.update(settings)

    def _row(self, steps: int) -> list[dict[str, Any]]:
        """The settings after so many steps of the scheduler."""
        while len(self._rows) <= steps:
            self._empty.step()
            with warnings.catch_warnings():
                # Some warn about steps beyond their last one, which then are constant.
                warnings.simplefilter("ignore")
                self._scheduler.step()
            self._rows.append(self._settings())
        return self._rows[steps]

    def _settings(self) -> list[dict[str, Any]]:
        return [
            {key: _plain(value) for key, value in group.items() if key in _SCHEDULED}
            for group in self._empty.param_groups
        ]

    def _step(self, dealt: int) -> int:
        """The number of global batches before one that begins after `dealt` samples."""
        if len(self._sizes.changes) == 1:
            size = self._sizes.at(0)
            epochs, rest = divmod(dealt, self._samples)
            return epochs * -(-self._samples // size) + rest // size
        while self._starts[-1] < dealt:
            start = self._starts[-1]
            end = (start // self._samples + 1) * self._samples
            self._starts.append(min(start + self._sizes.at(start), end))
        return bisect_right(self._starts, dealt) - 1


_SCHEDULED = ("lr", "momentum", "betas")
"""What torch's schedulers set."""


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, torch.Tensor) else value


def _check(scheduler: object) -> None:
    if isinstance(scheduler, ReduceLROnPlateau):
        raise TypeError(
            "ReduceLROnPlateau depends on a validation metric, which the processes that step the "
            "optimizer do not know when they step: use a scheduler that depends on steps or "
            "epochs, such as CosineAnnealingLR"
        )
    if not isinstance(scheduler, LRScheduler):
        raise TypeError(
            "lr_scheduler(optimizer) must return a scheduler of torch.optim.lr_scheduler, "
            f"got {type(scheduler).__name__}"
        )


class EmptyOptimizer(torch.optim.Optimizer):
    """An optimizer with the groups and settings of another one, and nothing to train."""

    def __init__(self, like: torch.optim.Optimizer) -> None:
        groups = [
            {**group, "params": [torch.nn.Parameter(torch.zeros(()))]}
            for group in like.param_groups
        ]
        super().__init__(groups, dict(like.defaults))

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Do nothing."""
