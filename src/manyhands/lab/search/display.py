"""The progress of a search: one line, with trials, the best result and the time left."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

from manyhands.lab.search.trial import short
from manyhands.script.cell_line import cell_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from manyhands.lab.search.methods import SearchPlan
    from manyhands.lab.search.trial import Trial, TrialResult

_TERMINAL_EVERY = 0.5
_PLAIN_EVERY = 10.0


class SearchDisplay:
    """Shows how far a search is, on a terminal in place, elsewhere a line every ten seconds.

    Args:
        plan: the search.
        metric: the name of the metric.
    """

    def __init__(self, plan: SearchPlan, metric: str) -> None:
        self._plan, self._metric = plan, metric
        self._cell = cell_line()
        self._rewrites = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._before: int | None = None
        self._last = -_PLAIN_EVERY
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()

    def show(self, results: Sequence[TrialResult], running: Sequence[Trial]) -> None:
        """Show the line, if it is time to."""
        if self._before is None:
            self._before = len(results)
        now = time.monotonic() - self._begun
        often = self._rewrites or self._cell is not None
        if now - self._last < (_TERMINAL_EVERY if often else _PLAIN_EVERY):
            return
        self._last = now
        text = self.words(results, running, now)
        if self._cell is not None:
            self._cell.show(text)
        elif self._rewrites:
            sys.stderr.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def words(
        self, results: Sequence[TrialResult], running: Sequence[Trial], seconds: float
    ) -> str:
        """The line."""
        parts = [f"{len(results)} of {self._plan.trials} trials"]
        failed = sum(1 for one in results if not one.is_finished)
        if failed:
            parts.append(f"{failed} failed")
        order = [one for one in self._plan.order(results) if one.is_finished]
        if order:
            best = order[-1]
            parts.append(
                f"best {self._metric} {short(best.score)} (trial {best.trial.number}: "
                f"{best.trial.words})"
            )
        parts.append(f"{len(running)} running")
        done = len(results) - (self._before or 0)
        if done and len(results) < self._plan.trials:
            left = seconds / done * (self._plan.trials - len(results))
            parts.append(f"about {_time(left)} left")
        return " · ".join(parts)


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
