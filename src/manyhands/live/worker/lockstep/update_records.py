"""What is recorded of a worker's updates: their staleness, and what codecs have not sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.live.member.progress import Progress
    from manyhands.placements.bound import Bound
    from manyhands.trace import Recorder

_BETWEEN_NORMS: Final = 1.0
"""Seconds between two norms of what was not sent, at least."""
_MOST: Final = 0.01
"""Of the time is spent on norms, at most."""


class UpdateRecords:
    """Records the updates of a worker under a placement.

    Args:
        bound: the worker's part of the model.
        recorder: the trace.
        progress: where the worker is.
        clock: a source of seconds.
    """

    def __init__(
        self, bound: Bound, recorder: Recorder, progress: Progress, clock: Callable[[], float]
    ) -> None:
        self._bound = bound
        self._recorder = recorder
        self._progress = progress
        self._clock = clock
        self._next = 0.0
        """When the norm is taken again."""

    def note(self, rank: int) -> None:
        """Record the staleness of updates since the last call, and now and then the residual."""
        for versions in self._bound.applied():
            self._recorder.staleness(versions, f"worker-{rank}")
        begun = self._clock()
        if begun >= self._next:
            self.note_residual("residual")
            spent = self._clock() - begun
            self._next = begun + max(_BETWEEN_NORMS, spent / _MOST)

    def note_residual(self, name: str) -> float:
        """Record the norm of what codecs have not sent, if there is anything; return it."""
        norm = self._bound.unsent_norm()
        if norm:
            self._recorder.point(name, norm, samples=self._progress.samples)
        return norm
