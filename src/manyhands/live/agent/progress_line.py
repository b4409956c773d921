"""The progress line: one line in the terminal for the whole run, for any number of workers."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, TextIO

from manyhands.script.cell_line import cell_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.wire import Status

_PLAIN_EVERY = 10.0
_RATE_OVER = 5.0


class ProgressLine:
    """The progress line: rewritten in place on a terminal and below a notebook's cell.

    Elsewhere it is a new line every 10 s.

    Args:
        budget: samples in the whole run, if known.
        seconds: the run's time limit, if there is one.
        clock: a source of seconds.
        stream: output stream; standard error by default.
    """

    def __init__(
        self,
        budget: int | None,
        seconds: float | None,
        clock: Callable[[], float],
        stream: TextIO | None = None,
    ) -> None:
        self._budget = budget
        self._seconds = seconds
        self._clock = clock
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._cell = None if stream else cell_line()
        self._begun: float | None = None
        self._window: deque[tuple[float, int]] = deque()
        self._written = -_PLAIN_EVERY
        self._width = 0

    def show(self, status: Status) -> None:
        """Show a status of the run."""
        training = status.started and status.samples
        text = self._training(status) if training else self._starting(status)
        if self._cell is not None:
            self._cell.show(text)
        elif self._terminal:
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        elif self._clock() - self._written >= _PLAIN_EVERY and (status.samples or status.missing):
            self._stream.write(text + "\n")
            self._written = self._clock()
        self._stream.flush()

    def say(self, words: str) -> None:
        """Write a message above the line."""
        self.end()
        self._stream.write(words + "\n")
        self._stream.flush()

    def end(self) -> None:
        """Leave the line."""
        if self._terminal and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
        self._width = 0

    def _starting(self, status: Status) -> str:
        if status.started:
            return f"starting: all {status.expected} workers joined"
        missing = f", missing {status.missing}" if status.missing else ""
        return f"starting: {status.joined} of {status.expected} workers joined{missing}"

    def _training(self, status: Status) -> str:
        now = self._clock()
        self._begun = now if self._begun is None else self._begun
        parts = [self._count(status.samples)]
        if status.phase == "evaluate":
            self._window.clear()
            return " · ".join([*parts, "evaluating"])
        self._window.append((now, status.samples))
        while len(self._window) > 2 and now - self._window[0][0] > _RATE_OVER:
            self._window.popleft()
        then, before = self._window[0]
        rate = (status.samples - before) / (now - then) if now > then else 0.0
        if rate > 0:
            parts.append(f"{rate:,.0f} samples/s")
        if status.loss is not None:
            parts.append(f"loss {status.loss:.4f}")
        left = self._left(status.samples, rate, now)
        if left is not None:
            parts.append(f"{_duration(left)} left")
        return " · ".join(parts)

    def _count(self, samples: int) -> str:
        if self._budget is None:
            return f"{samples:,} samples"
        return f"{samples:,} of {self._budget:,} samples ({100 * samples / self._budget:.0f} %)"

    def _left(self, samples: int, rate: float, now: float) -> float | None:
        limits = []
        if self._budget is not None and rate > 0:
            limits.append(max(0, self._budget - samples) / rate)
        if self._seconds is not None and self._begun is not None:
            limits.append(max(0.0, self._seconds - (now - self._begun)))
        return min(limits, default=None)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
