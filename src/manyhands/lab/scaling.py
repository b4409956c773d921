"""Scaling of a strategy: a table of speedup and efficiency over the number of workers.

The job is the same for any number of workers, its global batch included: strong scaling. With r(n)
samples per second on n workers, and b the fewest workers that were run,

    speedup(n) = r(n) / r(b)        efficiency(n) = b · speedup(n) / n

each within one repeat, whose runs are close in time; then the median over the repeats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.reports.comparison.statistics import Middle, middle
from manyhands.reports.formatting import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from manyhands.reports import Comparison, RunResult


@dataclass(frozen=True)
class ScalingRow:
    """The row of one number of workers."""

    workers: int
    rate: Middle | None
    """Samples per second; None if no run finished."""
    speedup: Middle | None
    """None also if no repeat has finished runs both of these and of the fewest workers."""
    efficiency: Middle | None


def scaling(results: Comparison) -> tuple[ScalingRow, ...]:
    """One row per number of workers, for a comparison with one strategy."""
    done = [run for run in results.runs if run.status == "finished"]
    rates: dict[int, dict[int, float]] = {workers: {} for workers in sorted(results.workers)}
    for run in done:
        rates[run.workers][run.repeat] = run.rate
    fewest = min(results.workers)
    return tuple(_row(workers, own, fewest, rates[fewest]) for workers, own in rates.items())


def _row(workers: int, rates: dict[int, float], fewest: int, base: dict[int, float]) -> ScalingRow:
    speedups = [rates[repeat] / base[repeat] for repeat in rates.keys() & base.keys()]
    return ScalingRow(
        workers=workers,
        rate=middle(list(rates.values())),
        speedup=middle(speedups),
        efficiency=middle([fewest * speedup / workers for speedup in speedups]),
    )


def markdown(rows: Iterable[ScalingRow]) -> str:
    """The table in Markdown, with intervals in brackets."""
    lines = [
        "| workers | samples/s | speedup | efficiency |",
        "| ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        cells = [
            str(row.workers),
            _cell(row.rate, count),
            _cell(row.speedup, lambda value: f"{value:.2f}"),
            _cell(row.efficiency, lambda value: f"{100 * value:.0f} %"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def remarks(results: Comparison) -> str:
    """The conditions of the table: strategy, budget, repeats and machine."""
    strategy = ", ".join(results.strategies)
    fewest = min(results.workers)
    brackets = f"lowest and highest of {results.repeats} runs"
    if results.repeats >= 5:
        brackets = f"90 % interval of the median of {results.repeats} runs"
    return (
        f"{strategy}; strong scaling: {results.budget}, the same global batch on any number of "
        f"workers; speedup over {fewest} worker{'' if fewest == 1 else 's'}; median, in brackets "
        f"the {brackets}. {results.machine.cpu}, {results.machine.cores} cores."
    )


def _cell(found: Middle | None, show: Callable[[float], str]) -> str:
    if found is None:
        return "–"
    if show(found.low) == show(found.high):
        return show(found.value)
    return f"{show(found.value)} ({show(found.low)}–{show(found.high)})"


def failures(results: Comparison) -> tuple[RunResult, ...]:
    """Failed runs, which are not in the table."""
    return tuple(run for run in results.runs if run.status == "failed")
