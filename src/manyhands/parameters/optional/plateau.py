"""`ReduceLROnPlateau`: learning rates that depend on the values of evaluations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from manyhands.parameters.initial.deferred import on_meta
from manyhands.parameters.scheduled_step import EmptyOptimizer, GroupSchedule, ScheduledValues

if TYPE_CHECKING:
    from collections.abc import Mapping

    from manyhands.job import Job


class PlateauSchedule:
    """The learning rates of a job's `ReduceLROnPlateau`, which is stepped after every evaluation.

    Every worker has the same values of an evaluation, so every worker's scheduler does the same.

    Args:
        job: the job, with validation data.
        scheduler: its scheduler, of an optimizer that trains nothing.
        stepped: that optimizer.

    Raises:
        ValueError: there is no validation data, or no metric of the name.
    """

    def __init__(
        self, job: Job, scheduler: ReduceLROnPlateau, stepped: torch.optim.Optimizer
    ) -> None:
        self._scheduler = scheduler
        self._stepped = stepped
        self._values = ScheduledValues(stepped)
        self._metric = plateau_metric(job, scheduler)

    def apply(self, optimizer: torch.optim.Optimizer, dealt: int) -> None:  # noqa: ARG002 - as `GroupSchedule`
        """Set the groups of an optimizer, as they are after the last evaluation."""
        self._values.give(optimizer, self._values.take())

    def state(self) -> dict[str, Any]:
        """What the scheduler has noted, and the learning rates."""
        noted = {
            name: value
            for name, value in self._scheduler.state_dict().items()
            if isinstance(value, (bool, int, str, list))
            or (isinstance(value, float) and math.isfinite(value))
        }
        return {"noted": noted, "lr": [float(one["lr"]) for one in self._stepped.param_groups]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._scheduler.load_state_dict(self._scheduler.state_dict() | state["noted"])
        for group, rate in zip(self._stepped.param_groups, state["lr"], strict=True):
            group["lr"] = rate

    def observe(self, values: Mapping[str, float]) -> None:
        """Step the scheduler with the values of an evaluation."""
        self._scheduler.step(values[self._metric])


def plateau_metric(job: Job, scheduler: ReduceLROnPlateau) -> str:
    """The name of the validation metric that a job's scheduler depends on.

    Raises:
        ValueError: there is no validation data, or no metric of the name.
    """
    if job.validation is None:
        raise ValueError("ReduceLROnPlateau depends on a validation metric: give validation data")
    if job.plateau_metric is None and scheduler.mode == "max":
        raise ValueError(
            'ReduceLROnPlateau(mode="max") needs a metric of which more is better, and the default '
            'is the loss: name one, as in Job(plateau_metric="accuracy")'
        )
    name = job.plateau_metric or "loss"
    known = job.value_names
    if name not in known:
        raise ValueError(
            f"plateau_metric={name!r} is no metric of this job; it has {', '.join(known)}"
        )
    return name


def schedule_of(
    job: Job, optimizer: torch.optim.Optimizer
) -> GroupSchedule | PlateauSchedule | None:
    """The schedule of a job where the values of evaluations are known; None if it has none."""
    if job.lr_scheduler is None:
        return None
    empty = EmptyOptimizer(optimizer)
    scheduler = job.lr_scheduler(empty)
    if isinstance(scheduler, ReduceLROnPlateau):
        return PlateauSchedule(job, scheduler, empty)
    return GroupSchedule(job, optimizer)


def has_plateau(job: Job) -> bool:
    """Whether the learning rates of a job depend on its evaluations.

    A worker that is restarted does not know those before, so it is not taken back then.
    """
    if job.lr_scheduler is None:
        return False
    try:
        optimizer = job.make_optimizer(on_meta(job.model))
    except Exception:  # noqa: BLE001 - the model needs values: any optimizer shows the schedule
        optimizer = torch.optim.SGD([torch.zeros(1)])
    try:
        return isinstance(job.lr_scheduler(EmptyOptimizer(optimizer)), ReduceLROnPlateau)
    except Exception:  # noqa: BLE001 - the trial batch reports what is wrong
        return True
