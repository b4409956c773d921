"""What workers in lockstep decide by the clock, at the same step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.job import Job
    from manyhands.transport.collectives import Group

_AGREE_EVERY = 0.25
"""Seconds between two decisions, each of which needs a collective."""


class Decision(NamedTuple):
    """What follows a step."""

    over: bool = False
    """The time limit is reached."""
    evaluates: bool = False
    """An evaluation is due by time."""
    stores: bool = False
    """A checkpoint is due by time, or was asked for."""


class Agreement:
    """Decisions by the first worker's clock.

    Workers must stop, evaluate and store at the same step: from time to time the first one
    broadcasts what its clock says, together with the step of the next broadcast.

    Args:
        job: the job with its limit and intervals.
        group: the workers.
        device: where the broadcast tensor is.
        clock: a source of seconds.
    """

    def __init__(
        self,
        job: Job,
        group: Group,
        device: torch.device,
        clock: Callable[[], float],
    ) -> None:
        self._limit = job.seconds
        self._evaluation = job.evaluation_seconds
        self._checkpoint = job.checkpoint.seconds if job.checkpoint else None
        self._asked: Callable[[], bool] | None = None
        self._group, self._device, self._clock = group, device, clock
        self._begun = self._evaluated_at = self._stored_at = clock()
        self._steps = 0
        self._next_look = 0

    def asks(self, asked: Callable[[], bool] | None) -> None:
        """Store where `asked` says that a checkpoint was asked for; None if the run stores none."""
        self._asked = asked

    @property
    def spent(self) -> float:
        """Seconds of training so far."""
        return self._clock() - self._begun

    def continue_from(self, seconds: float, step: int) -> None:
        """Count the seconds and steps of the run that this one continues."""
        self._begun -= seconds
        self._steps = self._next_look = step

    def evaluated(self) -> None:
        """Note an evaluation."""
        self._evaluated_at = self._clock()

    def look(self, step: int) -> Decision:
        """What follows a step; most of the time nothing is decided."""
        limit, interval = self._limit, self._evaluation
        if limit is None and interval is None and self._asked is None:
            return Decision()
        if step < self._next_look:
            return Decision()
        now = self._clock()
        spent = now - self._begun
        pace = max(spent / (step + 1), 1e-6)
        over = limit is not None and spent >= limit
        due = interval is not None and now - self._evaluated_at >= interval
        stores = self._asked is not None and self._asked()
        stores = stores or (
            self._checkpoint is not None and now - self._stored_at >= self._checkpoint
        )
        if stores:
            self._stored_at = now
        soon = min(_AGREE_EVERY, *filter(None, (interval, self._checkpoint)), _AGREE_EVERY)
        following = step + max(1, int(soon / pace))
        decided = torch.tensor(
            [over, due, stores, following], dtype=torch.int64, device=self._device
        )
        self._group.broadcast(decided)
        over, due, stores, self._next_look = decided.tolist()
        return Decision(bool(over), bool(due), bool(stores))
