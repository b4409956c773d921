"""What workers in lockstep decide by the clock, at the same step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from manyhands.job import Job

_OFTEN, _SELDOM = 0.25, 5.0
"""Seconds between two decisions, each of which needs a collective: at least, and at most."""
_COST = 0.05
"""The part of the time that decisions may take, where a collective takes long."""


class Decision(NamedTuple):
    """What follows a step."""

    over: bool = False
    """The time limit is reached."""
    evaluates: bool = False
    """An evaluation is due by time."""
    stores: bool = False
    """A checkpoint is due by time, or was asked for."""
    keeps: bool = False
    """A checkpoint in memory is due by time."""


class TimeLeft(NamedTuple):
    """Seconds until a decision is due; infinite if it never is by the clock."""

    limit: float
    evaluation: float
    checkpoint: float
    memory: float


class Agreement:
    """Decisions by the first worker's clock.

    Workers must stop, evaluate and store at the same step: from time to time the first one
    broadcasts what its clock says, together with the step of the next broadcast.

    Args:
        job: the job with its limit and intervals.
        device: where the broadcast tensor is.
        clock: a source of seconds.
    """

    def __init__(
        self,
        job: Job,
        device: torch.device,
        clock: Callable[[], float],
    ) -> None:
        self._limit = job.seconds
        self._evaluation = job.evaluation_seconds
        self._checkpoint = job.checkpoint.seconds if job.checkpoint else None
        self._memory: float | None = None
        self._asked: Callable[[], bool] | None = None
        self._device, self._clock = device, clock
        self._begun = self._evaluated_at = self._stored_at = self._kept_at = clock()
        self.next_look = 0
        """The step of the next decision."""
        self._took = math.inf
        """Seconds of a decision, the shortest so far: in others the first worker waited."""

    def asks(self, asked: Callable[[], bool] | None) -> None:
        """Store where `asked` says that a checkpoint was asked for; None if the run stores none."""
        self._asked = asked

    def keep(self, interval: float | None) -> None:
        """Keep a checkpoint in memory after so many seconds; None for none by time."""
        self._memory = interval

    @property
    def spent(self) -> float:
        """Seconds of training so far."""
        return self._clock() - self._begun

    def continue_from(self, seconds: float, step: int) -> None:
        """Count the seconds and steps of the run that this one continues."""
        self._begun -= seconds
        self.next_look = step

    def evaluated(self) -> None:
        """Note an evaluation."""
        self._evaluated_at = self._clock()

    def is_due(self, step: int) -> bool:
        """Whether something is decided after a step."""
        timed = (self._limit, self._evaluation, self._asked, self._memory)
        return any(one is not None for one in timed) and step >= self.next_look

    def begin(self) -> None:
        """Count seconds from now on."""
        self._begun = self._evaluated_at = self._stored_at = self._kept_at = self._clock()

    def position(self) -> dict[str, float]:
        """What a worker that joins needs to decide as the others do."""
        now = self._clock()
        return {
            "next_look": self.next_look,
            "elapsed": now - self._begun,
            "since_evaluation": now - self._evaluated_at,
            "since_checkpoint": now - self._stored_at,
        }

    def take_position(self, position: Mapping[str, float]) -> None:
        """Continue from what `position` returned."""
        now = self._clock()
        self.next_look = int(position["next_look"])
        self._begun = now - position["elapsed"]
        self._evaluated_at = now - position["since_evaluation"]
        self._stored_at = now - position["since_checkpoint"]

    def look(self, step: int, agree: Callable[[torch.Tensor], None]) -> Decision:
        """What follows a step; most of the time nothing is decided.

        Args:
            step: the step.
            agree: replaces a tensor, on every worker, by that of the first one.
        """
        if not self.is_due(step):
            return Decision()
        now = self._clock()
        spent = now - self._begun
        left = self._left(now)
        stores = (self._asked is not None and self._asked()) or left.checkpoint <= 0
        if stores:
            self._stored_at = now
        keeps = left.memory <= 0
        if keeps:
            self._kept_at = now
        over, due = left.limit <= 0, left.evaluation <= 0
        pace = max(spent / (step + 1), 1e-6)
        every = _OFTEN if math.isinf(self._took) else max(_OFTEN, self._took / _COST)
        soon = min(every, _SELDOM, *(one for one in self._left(now) if one > 0))
        if due and self._evaluation is not None:
            soon = min(soon, self._evaluation)
        following = step + max(1, int(soon / pace))
        decided = torch.tensor(
            [over, due, stores, keeps, following], dtype=torch.int64, device=self._device
        )
        agree(decided)
        self._took = min(self._took, self._clock() - now)
        *decision, self.next_look = decided.tolist()
        return Decision(*map(bool, decision))

    def _left(self, now: float) -> TimeLeft:
        """The seconds until each decision is due."""
        since = (self._begun, self._evaluated_at, self._stored_at, self._kept_at)
        after = (self._limit, self._evaluation, self._checkpoint, self._memory)
        return TimeLeft(
            *(
                math.inf if interval is None else interval - (now - moment)
                for moment, interval in zip(since, after, strict=True)
            )
        )
