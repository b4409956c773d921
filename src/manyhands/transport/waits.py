"""Waits of a worker for other workers, measured where it waits."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast, get_args

from manyhands.costs import Collective
from manyhands.costs.collectives import CollectiveKind, sent_by_member

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_COUNTED: frozenset[str] = frozenset(get_args(CollectiveKind))


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
        self._coding: list[tuple[float, float]] = []
        self.noted: list[Noted] | None = None
        """A list to which started collectives are appended; None to ignore them."""
        self.payload = 0.0
        """Payload bytes that this worker has sent, computed from the collectives it started."""

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

    @contextlib.contextmanager
    def coding(self) -> Iterator[None]:
        """Context of encoding or decoding, possibly in another thread."""
        begun = self._clock()
        yield
        self._coding.append((begun, self._clock() - begun))

    def take_coding(self) -> list[tuple[float, float]]:
        """When something was encoded or decoded since the last call: start and duration."""
        taken = self._coding[:]
        del self._coding[: len(taken)]
        return taken

    def note(self, kind: str, size: int, workers: int) -> None:
        """Note that a collective starts."""
        self._before()
        self.tally(kind, size, workers)
        if self.noted is not None:
            self.noted.append(Noted(kind, size, workers))

    def tally(self, kind: str, size: int, workers: int) -> None:
        """Count the payload of a collective that is not noted, as DDP starts it within torch."""
        if kind in _COUNTED:
            counted = Collective(cast("CollectiveKind", kind), size, workers)
            self.payload += sent_by_member(counted)


def overlap(start: float, seconds: float, others: Sequence[tuple[float, float]]) -> float:
    """Seconds of an interval that are also in others, which do not overlap each other.

    >>> overlap(1.0, 2.0, [(0.5, 1.0), (2.75, 4.0)])
    0.75
    """
    end = start + seconds
    return sum(max(0.0, min(end, begun + long) - max(start, begun)) for begun, long in others)
