"""A worker's local optimizer, on parameters laid out as in the servers' shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from manyhands.job.optimizers import parts_of
from manyhands.parameters.arithmetic import not_finite_in
from manyhands.parameters.optional.named_state import (
    load_named,
    named_entries,
    named_numbers,
    sizes_of_parameters,
)
from manyhands.parameters.optional.plateau import PlateauSchedule, schedule_of
from manyhands.parameters.scheduled_step import weighted_step

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from manyhands.codecs.kernels.finite import NotFinite
    from manyhands.files.checkpoints.parts import TensorPart
    from manyhands.files.checkpoints.reading import Checkpoint
    from manyhands.job import Job
    from manyhands.parameters.layout import Layout
    from manyhands.parameters.optional.named_state import Lines


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
        self._shards = layout.shards
        groups: list[list[torch.nn.Parameter]] = [[] for _ in optimizer.param_groups]
        self._pieces = []
        self._places: list[int] = []
        """By piece, its place in its shard."""
        for shard, flat in zip(layout.shards, parameters, strict=True):
            for place, fragment in enumerate(shard.parameters):
                parameter = torch.nn.Parameter(fragment.view(flat))
                self._pieces.append((shard.number, fragment, parameter))
                self._places.append(place)
                groups[fragment.group].append(parameter)
        for group, members in zip(optimizer.param_groups, groups, strict=True):
            group["params"] = members
        self.optimizer = optimizer
        self._sizes = sizes_of_parameters(layout)
        self._lr_factor = job.lr_factor
        self._schedule = schedule_of(job, optimizer)

    def step(
        self,
        updates: Sequence[torch.Tensor],
        weight: float,
        dealt: int,
        objective: int = 0,
        unused: Sequence[Collection[int]] = (),
    ) -> NotFinite:
        """Take a step with an update from a batch after `dealt` samples, weighted by `weight`.

        By shard, `unused` has the places of parameters without a gradient.

        No step is taken with an update that has NaN or infinity, which is returned. If the job has
        several objectives, it is a step of the optimizer of one of them.
        """
        for shard, update in zip(self._shards, updates, strict=True):
            if found := not_finite_in(shard, update):
                return found
        for (number, fragment, parameter), place in zip(self._pieces, self._places, strict=True):
            if not unused or place not in unused[number]:
                parameter.grad = fragment.view(updates[number])
        if self._schedule is not None:
            self._schedule.apply(self.optimizer, dealt)
        weighted_step(parts_of(self.optimizer)[objective], weight * self._lr_factor(dealt))
        for _, _, parameter in self._pieces:
            parameter.grad = None
        return ""

    def named_state(self) -> tuple[list[TensorPart], dict[str, Any]]:
        """The optimizer's state by the names of the parameters, for a checkpoint."""
        parts = list(named_entries(self.optimizer, self._lines(), self._sizes))
        return parts, named_numbers(self.optimizer, self._lines())

    def load_named(self, stored: Checkpoint) -> None:
        """Continue with the optimizer's state of a checkpoint, of any strategy."""
        load_named(self.optimizer, self._lines(), stored)

    def own_state(self) -> dict[str, torch.Tensor]:
        """The optimizer's state of this worker, by the index of a parameter."""
        return {
            f"{index}/{key}": value
            for index, (_, _, parameter) in enumerate(self._pieces)
            for key, value in self.optimizer.state.get(parameter, {}).items()
            if isinstance(value, torch.Tensor)
        }

    def load_own_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Continue with what `own_state` returned."""
        for name, value in tensors.items():
            index, _, key = name.partition("/")
            self.optimizer.state[self._pieces[int(index)][2]][key] = value

    def _lines(self) -> Lines:
        # Fragments of different shards have offsets of their own.
        return [
            (parameter, [(one.name, one.start, 0, one.stop - one.start)])
            for _, one, parameter in self._pieces
        ]

    @property
    def plateau(self) -> PlateauSchedule | None:
        """The schedule, if it depends on evaluations."""
        return self._schedule if isinstance(self._schedule, PlateauSchedule) else None

    def observe(self, values: Mapping[str, float]) -> None:
        """Note the values of an evaluation, on which learning rates may depend."""
        if self.plateau is not None:
            self.plateau.observe(values)
