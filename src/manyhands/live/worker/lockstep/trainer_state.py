"""The state of a trainer that a worker hands over to others: tensors, numbers, optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.batchnorm import _NormBase

from manyhands.parameters.optional.plateau import PlateauSchedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from manyhands.parameters.optional.clipping import MeanOf
    from manyhands.parameters.optional.loss_scale import LossScale
    from manyhands.parameters.optional.weight_average import WeightAverage
    from manyhands.parameters.scheduled_step import GroupSchedule
    from manyhands.stopping import Improvement

_MORE = 64 << 20
_TIMES = 16
"""The largest state of optimizer and averages: so many bytes more, and times those of the model."""


def limit_of(model: nn.Module) -> int:
    """The bytes of the largest state that a worker accepts for its model."""
    own = sum(one.nbytes for one in (*model.parameters(), *model.buffers()))
    return _MORE + _TIMES * own


@dataclass(frozen=True, eq=False)
class TrainerState:
    """The parts of a trainer that change in the course of a run."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: WeightAverage | None
    scale: LossScale | None
    improvement: Improvement
    norms: MeanOf | None
    schedule: GroupSchedule | PlateauSchedule | None

    def take(self) -> dict[str, Any]:
        """The state, with the tensors themselves."""
        values = [*self.model.parameters(), *self.model.buffers()]
        average = vars(self.average)["_average"] if self.average is not None else []
        return self.numbers() | {
            "values": [one.detach() for one in values],
            "optimizer": self.optimizer.state_dict(),
            "average": list(average),
        }

    def numbers(self) -> dict[str, Any]:
        """What of the state is no tensor of the model or of its optimizer."""
        return {
            "scale": _numbers(self.scale),
            "improvement": _numbers(self.improvement),
            "norms": _numbers(self.norms),
            "plateau": self._plateau(),
        }

    def catch_up(self, state: dict[str, Any]) -> None:
        """Take what the last operation of another worker has changed.

        The rest is derived from its result by every worker itself.
        """
        self.set_values(state["values"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            vars(self.average)["_average"] = list(state["average"])
        _set_numbers(self.scale, state["scale"])

    def take_over(self, state: dict[str, Any]) -> None:
        """Take everything, as a worker that joins at a step."""
        self.catch_up(state)
        self.take_numbers(state)

    def take_numbers(self, state: dict[str, Any]) -> None:
        """Take what `numbers` returned."""
        _set_numbers(self.scale, state["scale"])
        _set_numbers(self.improvement, state["improvement"])
        _set_numbers(self.norms, state["norms"])
        if isinstance(self.schedule, PlateauSchedule):
            scheduler, stepped = _parts(self.schedule)
            scheduler.load_state_dict({**scheduler.state_dict(), **state["plateau"]["scheduler"]})
            for group, rate in zip(stepped.param_groups, state["plateau"]["rates"], strict=True):
                group["lr"] = rate

    @torch.no_grad()
    def set_values(self, values: Sequence[torch.Tensor]) -> None:
        """Set the model's parameters and buffers."""
        own = (*self.model.parameters(), *self.model.buffers())
        for one, value in zip(own, values, strict=True):
            one.copy_(value)

    def _plateau(self) -> dict[str, Any]:
        if not isinstance(self.schedule, PlateauSchedule):
            return {}
        scheduler, stepped = _parts(self.schedule)
        known = scheduler.state_dict().items()
        return {
            "scheduler": {key: one for key, one in known if isinstance(one, (int, float, str))},
            "rates": [float(group["lr"]) for group in stepped.param_groups],
        }


def _parts(schedule: PlateauSchedule) -> tuple[Any, torch.optim.Optimizer]:
    kept = vars(schedule)
    return kept["_scheduler"], kept["_stepped"]


def _numbers(part: object | None) -> dict[str, Any]:
    """The numbers that an object holds as attributes."""
    held = {} if part is None else vars(part)
    return {name: one for name, one in held.items() if isinstance(one, (int, float))}


def _set_numbers(part: object | None, numbers: dict[str, Any]) -> None:
    if part is not None:
        vars(part).update(numbers)


class KeptBuffers:
    """The values of a model's buffers before an operation, in case that it is interrupted.

    A buffer that is not changed is copied once: its version tells. Normalisation layers change
    theirs without a new version, and are copied every time.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        changing = {
            id(buffer)
            for module in model.modules()
            if isinstance(module, _NormBase)
            for buffer in module.buffers(recurse=False)
        }
        self._buffers = [(one, id(one) in changing) for one in model.buffers()]
        self._copies: list[tuple[int, torch.Tensor]] = []

    def keep(self) -> None:
        """Copy the buffers that may have changed since the last call."""
        if not self._copies:
            self._copies = [(one._version, one.clone()) for one, _ in self._buffers]
            return
        for at, (one, changes) in enumerate(self._buffers):
            version, copy = self._copies[at]
            if changes or one._version != version:
                copy.copy_(one)
                self._copies[at] = (one._version, copy)

    @torch.no_grad()
    def restore(self) -> None:
        """Give the buffers the values that they had at the last `keep`."""
        for at, ((one, changes), (version, copy)) in enumerate(
            zip(self._buffers, self._copies, strict=True)
        ):
            if changes or one._version != version:
                one.copy_(copy)
                self._copies[at] = (one._version, copy)
