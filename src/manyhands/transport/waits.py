"""Waits of a worker for other workers, measured where it waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Noted:
    """A collective that was started: its kind, its larger side in bytes, and its workers."""

    kind: str
    size: int
    workers: int


class Waits:
    """A worker's waits within a step, and whether it waits now.

    Args:
        clock: a source of seconds.
        notify: called with True when a wait begins and with False when it ends, so that workers
            that wait can be distinguished from workers that are awaited.
        before: called before a collective starts, and before a wait for it.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        notify: Callable[[bool], object],
        before: Callable[[], object] = lambda: None,
    ) -> None:
        self._before = before
        self._clock = clock
        self._notify = notify
        self._since: float | None = None
        self._waits: list[tuple[float, float]] = []
        self.noted: list[Noted] | None = None
        """A list to which started collectives are appended; None to ignore them."""

    def begin(self) -> None:
        """Begin a wait; a wait that has begun already is restarted."""
        self._before()
        self._since = self._clock()
        self._notify(True)

    def end(self) -> None:
        """End the wait, if there is one."""
        if self._since is not None:
            self._waits.append((self._since, self._clock() - self._since))
            self._since = None
        self._notify(False)

    def take(self) -> list[tuple[float, float]]:
        """The waits since the last call: the start and the duration of each."""
        waits, self._waits = self._waits, []
        return waits

    def note(self, kind: str, size: int, workers: int) -> None:
        """Note that a collective starts."""
        self._before()
        if self.noted is not None:
            self.noted.append(Noted(kind, size, workers))
