"""How often workers of a run were restarted, and whether one more may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyhands.wire import Status

_MOST = 1000
"""Restarts in one run, as for servers."""


class WorkerReturns:
    """Counts the restarts of workers.

    Twice the number of workers may be restarted before the run has trained on new samples: a
    worker that is killed by its own batch would otherwise be restarted for ever, and one that is
    killed now and then would be given up in a long run.

    Args:
        workers: number of workers of the run.
    """

    def __init__(self, workers: int) -> None:
        self._limit = 2 * workers
        self._fruitless = 0
        self.samples = 0
        """Samples of the run so far."""
        self.total = 0
        """Restarts so far."""

    def follow(self, status: Status) -> None:
        """Note the progress of the run."""
        if status.samples > self.samples:
            self.samples, self._fruitless = status.samples, 0

    @property
    def are_allowed(self) -> bool:
        """Whether one more worker may be restarted."""
        return self._fruitless < self._limit and self.total < _MOST

    def add(self) -> int:
        """Count a restart; return how many there were, this one included."""
        self._fruitless += 1
        self.total += 1
        return self.total
