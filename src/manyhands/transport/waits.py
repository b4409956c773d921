"""How long a worker waits for others, added up where it waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Noted:
    """A collective that was begun: what, its larger side in bytes, and how many took part."""

    kind: str
    size: int
    workers: int


class Waits:
    """A worker's stretches of waiting within a step, and whether it waits now.

    Args:
        clock: what they are measured by.
        tell: called with True when a stretch begins and with False when it ends, so that whoever
            is missing can be told from whoever misses it.
        before: called before a collective begins, and before it is waited for.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        tell: Callable[[bool], object],
        before: Callable[[], object] = lambda: None,
    ) -> None:
        self._before = before
        self._clock = clock
        self._tell = tell
        self._since: float | None = None
        self._stretches: list[tuple[float, float]] = []
        self.noted: list[Noted] | None = None
        """Collectives, if somebody has put a list here."""

    def begin(self) -> None:
        """From now on it waits; a stretch that has begun already begins only now."""
        self._before()
        self._since = self._clock()
        self._tell(True)

    def end(self) -> None:
        """It waits no longer, if it did."""
        if self._since is not None:
            self._stretches.append((self._since, self._clock() - self._since))
            self._since = None
        self._tell(False)

    def take(self) -> list[tuple[float, float]]:
        """The stretches since the last call: when each began and how long it was."""
        stretches, self._stretches = self._stretches, []
        return stretches

    def note(self, kind: str, size: int, workers: int) -> None:
        """A collective begins: keep it, if somebody wants to know."""
        self._before()
        if self.noted is not None:
            self.noted.append(Noted(kind, size, workers))
