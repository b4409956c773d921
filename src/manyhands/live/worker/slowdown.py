"""Slowdown of a worker: makes its computation take longer, as on a slower machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Slowdown:
    """Makes a worker's computation take `factor` times as long, by sleeping in between.

    It is called before the worker sends anything, so that all that other workers wait for is late
    by the same factor. A sleep that took too long is subtracted from the next one.

    Args:
        factor: the slowdown; 1 never sleeps.
        clock: a source of seconds.
        sleep: sleeps for a number of seconds.
    """

    def __init__(
        self,
        factor: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._factor = factor
        self._clock = clock
        self._sleep = sleep
        self._since = clock()
        self._owed = 0.0

    @property
    def idle(self) -> bool:
        """Whether the factor is 1."""
        return self._factor == 1

    def begin(self) -> None:
        """Note that computation begins, or continues after something else."""
        self._since = self._clock()

    def stretch(self) -> None:
        """Sleep in proportion to the computation since `begin` or since the last call."""
        if self.idle:
            return
        now = self._clock()
        self._owed += (self._factor - 1) * (now - self._since)
        if self._owed > 0:
            self._sleep(self._owed)
            woken = self._clock()
            self._owed -= woken - now
            now = woken
        self._since = now

    def before(self, ready: Callable[[int], object] | None) -> Callable[[int], object] | None:
        """Wrap `ready` so that it is called with the delay of the slowdown."""
        if ready is None or self.idle:
            return ready

        def late(shard: int) -> None:
            self.stretch()
            ready(shard)
            self.begin()

        return late
