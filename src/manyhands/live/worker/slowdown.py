"""Computing that takes longer than it needs to, as it would on a slower machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Slowdown:
    """Makes what a worker computes take `factor` times as long, by sleeping in between.

    It is called wherever something leaves the worker, so that whatever others wait for is late by
    the same factor. A sleep that took too long is taken off the next one.

    Args:
        factor: 1 sleeps never.
        clock: seconds.
        sleep: lets so many of them pass.
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
        """Whether there is nothing to slow."""
        return self._factor == 1

    def begin(self) -> None:
        """Computing begins, or goes on after something else."""
        self._since = self._clock()

    def stretch(self) -> None:
        """Sleep for what was computed since `begin`, or since the last call of this."""
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
        """`ready`, called only once the time for what is ready by then has passed."""
        if ready is None or self.idle:
            return ready

        def late(shard: int) -> None:
            self.stretch()
            ready(shard)
            self.begin()

        return late
