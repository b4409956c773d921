"""A worker's local optimizer, on parameters laid out as in the servers' shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from manyhands.job.optimizers import parts_of
from manyhands.parameters.optional.plateau import PlateauSchedule, schedule_of
from manyhands.parameters.scheduled_step import weighted_step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from manyhands.job import Job
    from manyhands.parameters.layout import Layout


class LocalOptimizer:
    """The job's optimizer on the parameters of one worker.

    Args:
        job: the job that defines the optimizer.
        model: a copy of its model, from which the optimizer is constructed.
        layout: the layout of its parameters.
        parameters: the bytes, one tensor per shard.
    """

    def __init__(
        self,
        job: Job,
        model: torch.nn.Module,
        layout: Layout,
        parameters: Sequence[torch.Tensor],
    ) -> None:
        optimizer = job.make_optimizer(model)
        groups: list[list[torch.nn.Parameter]] = [[] for _ in optimizer.param_groups]
        self._pieces = []
        for shard, flat in zip(layout.shards, parameters, strict=True):
            for fragment in shard.parameters:
                parameter = torch.nn.Parameter(fragment.view(flat))
                self._pieces.append((shard.number, fragment, parameter))
                groups[fragment.group].append(parameter)
        for group, members in zip(optimizer.param_groups, groups, strict=True):
            group["params"] = members
        self.optimizer = optimizer
        self._lr_factor = job.lr_factor
        self._schedule = schedule_of(job, optimizer)

    def step(
        self, updates: Sequence[torch.Tensor], weight: float, dealt: int, objective: int = 0
    ) -> None:
        """Take a step with an update from a batch after `dealt` samples, weighted by `weight`.

        If the job has several objectives, it is a step of the optimizer of one of them.
        """
        for number, fragment, parameter in self._pieces:
            parameter.grad = fragment.view(updates[number])
        if self._schedule is not None:
            self._schedule.apply(self.optimizer, dealt)
        weighted_step(parts_of(self.optimizer)[objective], weight * self._lr_factor(dealt))
        for _, _, parameter in self._pieces:
            parameter.grad = None

    def observe(self, values: Mapping[str, float]) -> None:
        """Note the values of an evaluation, on which learning rates may depend."""
        if isinstance(self._schedule, PlateauSchedule):
            self._schedule.observe(values)
