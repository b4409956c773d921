"""Display of a running comparison: a growing table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
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

_PLAIN_EVERY = 30.0
"""Seconds between two lines about one run, without a terminal."""


class ComparisonDisplay:
    """Shows the progress of a comparison.

    Args:
        total: number of runs.
        console: output console.
        clock: a source of seconds.
    """

    def __init__(
        self,
        total: int,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._console = console
        self._clock = clock
        self._done = self._found = 0
        self._spent: list[float] = []
        """Seconds of every run of this start."""
        self._begun = self._said = clock()
        self._heading = self._words = ""
        self._table: RenderableType | None = None
        # Once a second: drawing takes time from the run that is measured.
        self._live = Live(
            console=console, get_renderable=self._picture, transient=True, refresh_per_second=1
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
        self._begun = self._said = self._clock()
        self._table = table(results) if results.runs else None
        self._heading = f"run {self._done + 1} of {self._total}: {turn}"
        self._words = "starting"
        if not self._console.is_terminal:
            self._say(self._heading)

    def progress(self, words: str) -> None:
        """Show the progress of the current run."""
        if words == self._words or not words:
            return
        self._words = words
        if not self._console.is_terminal and self._clock() - self._said >= _PLAIN_EVERY:
            self._say(f"  {words}")
            self._said = self._clock()

    def made(self, turn: PlannedRun, run: RunResult) -> None:
        """Show the result of a run that has ended."""
        self._spent.append(self._clock() - self._begun)
        self._done += 1
        self._heading = ""
        left = self._left()
        words = f"[{self._done}/{self._total}] {turn}: {outcome(run)}"
        self._say(f"{words} ({left})" if left else words)

    def found(self) -> None:
        """Count a run that was made before."""
        self._done += 1
        self._found += 1

    def _tell_found(self) -> None:
        if self._found:
            self._say(f"{self._found} of {self._total} runs were made before")
            self._found = 0

    def _left(self) -> str:
        left = (self._total - self._done) * sum(self._spent) / len(self._spent)
        if left <= 0:
            return ""
        return f"about {left / 60:.0f} min left" if left >= 90 else f"about {left:.0f} s left"

    def _say(self, words: str) -> None:
        self._console.print(words, markup=False, highlight=False, soft_wrap=True)

    def _picture(self) -> RenderableType:
        parts: list[RenderableType] = []
        # The current run comes first: the table may be higher than the terminal.
        if self._heading:
            spent = duration(self._clock() - self._begun)
            parts.append(Text(f"{self._heading} · {spent} · {self._words}", overflow="ellipsis"))
        if self._table is not None:
            parts.append(self._table)
        return Group(*parts)


def outcome(run: RunResult) -> str:
    """The result of a run as text."""
    if run.status == "failed":
        return f"failed: {run.words}"
    parts = [f"{count(run.rate)} samples/s"]
    for name, curve in run.validation.items():
        if curve.value and curve.value[-1] is not None:
            parts.append(f"{name} {metric_value(name, curve.value[-1])}")
    if run.time_to_target is not None:
        parts.append(f"target after {duration(run.time_to_target)}")
    return ", ".join([*parts, f"{duration(run.seconds)} of training"])
