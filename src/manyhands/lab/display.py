"""Display of a running comparison: a growing table in a terminal, plain lines elsewhere.

Below a notebook's cell it is one line, which is rewritten.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from manyhands.reports.comparison.columns import metric_value
from manyhands.reports.formatting import count, duration
from manyhands.reports.render.table import table

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from manyhands.lab.order import PlannedRun
    from manyhands.reports import Comparison, RunResult
    from manyhands.script.cell_line import CellLine

_PLAIN_EVERY = 30.0
"""Seconds between two lines about one run, without a terminal."""


@dataclass(eq=False, slots=True)
class _Current:
    """A run that is being made."""

    heading: str
    begun: float
    said: float
    """When a line about it was last written."""
    words: str = "starting"


class ComparisonDisplay:
    """Shows the progress of a comparison.

    Args:
        total: number of runs.
        console: output console.
        clock: a source of seconds.
        at_once: number of runs that are made at the same time. With several there is no thread
            that draws, because processes are forked meanwhile: call `refresh`.
        cell: the line below a notebook's cell, if there is one.
    """

    def __init__(
        self,
        total: int,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
        at_once: int = 1,
        cell: CellLine | None = None,
    ) -> None:
        self._total = total
        self._cell = cell
        self._console = console
        self._clock = clock
        self._at_once = at_once
        self._done = self._found = 0
        self._spent: list[float] = []
        """Seconds of every run of this start."""
        self._current: dict[str, _Current] = {}
        """The runs that are being made, by name."""
        self._table: RenderableType | None = None
        # Once a second: drawing takes time from the run that is measured.
        self._live = Live(
            console=console,
            get_renderable=self._picture,
            transient=True,
            refresh_per_second=1,
            auto_refresh=at_once == 1,
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()
        self._tell_found()

    def begins(self, turn: PlannedRun, results: Comparison) -> None:
        """Show that a run is started."""
        self._tell_found()
        self._table = table(results) if results.runs else None
        number = self._done + len(self._current) + 1
        now, heading = self._clock(), f"run {number} of {self._total}: {turn}"
        self._current[turn.name] = _Current(heading, now, now)
        if not self._console.is_terminal:
            self._say(heading)

    def progress(self, turn: PlannedRun, words: str) -> None:
        """Show the progress of a run."""
        current = self._current[turn.name]
        if words == current.words or not words:
            return
        current.words = words
        now = self._clock()
        if self._cell is not None:
            self._say(f"{current.heading} · {words}")
            return
        if not self._console.is_terminal and now - current.said >= _PLAIN_EVERY:
            whose = "" if self._at_once == 1 else f"{turn}: "
            self._say(f"  {whose}{words}")
            current.said = now

    def made(self, turn: PlannedRun, run: RunResult) -> None:
        """Show the result of a run that has ended."""
        self._spent.append(self._clock() - self._current.pop(turn.name).begun)
        self._done += 1
        left = self._left()
        words = f"[{self._done}/{self._total}] {turn}: {outcome(run)}"
        self._say(f"{words} ({left})" if left else words)

    def refresh(self) -> None:
        """Draw, where no thread does."""
        if self._console.is_terminal:
            self._live.refresh()

    def found(self) -> None:
        """Count a run that was made before."""
        self._done += 1
        self._found += 1

    def _tell_found(self) -> None:
        if self._found:
            self._say(f"{self._found} of {self._total} runs were made before")
            self._found = 0

    def _left(self) -> str:
        each = sum(self._spent) / len(self._spent) / self._at_once
        left = (self._total - self._done) * each
        if left <= 0:
            return ""
        return f"about {left / 60:.0f} min left" if left >= 90 else f"about {left:.0f} s left"

    def _say(self, words: str) -> None:
        if self._cell is not None:
            self._cell.show(words)
            return
        self._console.print(words, markup=False, highlight=False, soft_wrap=True)

    def _picture(self) -> RenderableType:
        parts: list[RenderableType] = []
        # Current runs come first: the table may be higher than the terminal.
        for current in tuple(self._current.values()):
            spent = duration(self._clock() - current.begun)
            line = f"{current.heading} · {spent} · {current.words}"
            parts.append(Text(line, overflow="ellipsis"))
        if self._table is not None:
            parts.append(self._table)
        return Group(*parts)


def outcome(run: RunResult) -> str:
    """The result of a run as text."""
    if run.status == "failed":
        return f"failed: {run.failure}"
    parts = [f"{count(run.rate)} samples/s"]
    for name, curve in run.validation.items():
        if curve.value and curve.value[-1] is not None:
            parts.append(f"{name} {metric_value(name, curve.value[-1])}")
    if run.time_to_target is not None:
        parts.append(f"target after {duration(run.time_to_target)}")
    return ", ".join([*parts, f"{duration(run.seconds)} of training"])
