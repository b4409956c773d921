"""Optimizer steps with the settings of their batch: a weight on the learning rate, a scheduler.

A torch `LRScheduler` is used as a table: what it sets in an optimizer's groups, by position in the
run. Every worker and every server needs the settings of the batch that it steps with, and these
come in no order. So the scheduler is not attached to an optimizer that trains: it steps an empty
one with the same groups, ahead of the run, and what it sets is looked up by the samples before a
batch.
"""

from __future__ import annotations

import copy
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
    gradient's own magnitude (`docs/decisions/0003-rate-carries-weight.md`).
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


Values = list[dict[str, Any]]
"""By parameter group, all of its values but the parameters."""


class ScheduledValues:
    """What a scheduler changes in the groups of an optimizer that trains nothing.

    The one place through which values of groups reach the optimizers that train: learning rates,
    momentum, betas, weight decay, and whatever else a group has. A value that the scheduler has
    never changed is not given: an optimizer may keep counts of its own in its groups.

    Args:
        stepped: the optimizer that trains nothing, before a scheduler is made for it.
    """

    def __init__(self, stepped: torch.optim.Optimizer) -> None:
        self._stepped = stepped
        self._first = self._now()
        self._changed: list[set[str]] = [{"lr"} for _ in self._first]

    def take(self) -> Values:
        """The values of now; those that differ from the first ones are given from now on."""
        now = self._now()
        for names, group, first in zip(self._changed, now, self._first, strict=True):
            names |= {
                name for name, value in group.items() if name not in first or first[name] != value
            }
        return now

    def give(self, optimizer: torch.optim.Optimizer, values: Values) -> None:
        """Set the groups of an optimizer to values that `take` returned.

        A tensor, such as the learning rate of a capturable optimizer, stays the same tensor.
        """
        for group, given, names in zip(optimizer.param_groups, values, self._changed, strict=True):
            for name in names & given.keys():
                held, value = group.get(name), given[name]
                if isinstance(held, torch.Tensor) and isinstance(value, (float, list)):
                    held.detach().copy_(torch.as_tensor(value))
                else:
                    group[name] = _kept(value)

    def _now(self) -> Values:
        return [
            {key: _kept(value) for key, value in group.items() if key != "params"}
            for group in self._stepped.param_groups
        ]


class GroupSchedule:
    """What a job's scheduler sets in each parameter group, by the position in the run.

    It may change any value of a group: learning rates, momentum, betas, weight decay, and values
    that a custom optimizer has.

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
        self._values = ScheduledValues(self._empty)
        self._scheduler = job.lr_scheduler(self._empty)
        _check(self._scheduler)
        self._rows = [self._values.take()]
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
        self._values.give(optimizer, row)

    def _row(self, steps: int) -> Values:
        """The settings after so many steps of the scheduler."""
        while len(self._rows) <= steps:
            self._empty.step()
            with warnings.catch_warnings():
                # Some warn about steps beyond their last one, which then are constant.
                warnings.simplefilter("ignore")
                self._scheduler.step()
            self._rows.append(self._values.take())
        return self._rows[steps]

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


def _kept(value: Any) -> Any:
    """A value of a parameter group, which later changes in place do not reach."""
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 else value.tolist()
    return copy.copy(value) if isinstance(value, (list, dict)) else value


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
        # A scheduler changes tensors and lists in place: those of the other one stay as they are.
        groups = [
            {key: _own(value) for key, value in group.items() if key != "params"}
            | {"params": [torch.nn.Parameter(torch.zeros(()))]}
            for group in like.param_groups
        ]
        super().__init__(groups, dict(like.defaults))

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Do nothing."""


def _own(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copy.copy(value) if isinstance(value, (list, dict)) else value
