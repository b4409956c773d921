"""Standings of a comparison: groups of comparable runs, and their figures over repeats.

Runs are compared in a *field*: those of one kind, live or virtual, with the same number of workers
and, where conditions such as the bandwidth were swept, under the same conditions.
Live and virtual seconds are never in one field. One worker alone (`single()`) is part of every
field of its kind, because "do not distribute" is a possible answer.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from manyhands.reports.comparison.columns import Column, Yardstick, columns
from manyhands.reports.comparison.measure import read_target
from manyhands.reports.comparison.results import Comparison, RunResult
from manyhands.reports.comparison.statistics import Middle, middle
from manyhands.reports.comparison.verdicts.reaching import TargetAttempt
from manyhands.reports.figures.trace_figures import lower_is_better
from manyhands.reports.formatting import duration

ALONE: Final = "single()"

Kind = Literal["live", "virtual"]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A strategy on a number of workers, over its repeats."""

    strategy: str
    workers: int
    runs: tuple[RunResult, ...]
    """Those that finished, by repeat."""
    failures: tuple[RunResult, ...]
    yardstick: Yardstick

    def repeats(self, column: Column) -> dict[int, float]:
        """A figure by repeat, of the runs that have it."""
        found = ((run.repeat, column.of(run, self.yardstick)) for run in self.runs)
        return {repeat: value for repeat, value in found if value is not None}

    @property
    def made(self) -> int:
        """How many runs have ended, whether they finished or failed."""
        return len(self.runs) + len(self.failures)

    @property
    def attempts(self) -> dict[int, TargetAttempt]:
        """Every run's attempt at the target, by repeat; one that failed has missed it."""
        found = {run.repeat: TargetAttempt(run.seconds, reached=False) for run in self.failures}
        for run in self.runs:
            reached = run.time_to_target is not None
            found[run.repeat] = TargetAttempt(run.time_to_target or run.seconds, reached=reached)
        return found

    @property
    def reached(self) -> int:
        """How many runs reached the target."""
        return sum(one.reached for one in self.attempts.values())

    def middle(self, column: Column) -> Middle | None:
        """A figure's median over the runs that have it."""
        return middle(list(self.repeats(column).values()))


@dataclass(frozen=True)
class Field:
    """What is compared: one kind of runs, on as many workers."""

    comparison: Comparison
    kind: Kind
    workers: int
    standings: tuple[Standing, ...]
    """In the order of the comparison, one worker alone first."""
    conditions: str = ""
    """Swept conditions of its runs, as in `, bandwidth=10mbit`; usually empty."""

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The figures that at least one run has."""
        return tuple(
            column
            for column in _columns(self.comparison, self.kind)
            if any(standing.middle(column) for standing in self.standings)
        )

    def column(self, name: str) -> Column | None:
        """The figure of that name, if any run has it."""
        return next((column for column in self.columns if column.name == name), None)

    @cached_property
    def speed(self) -> Column | None:
        """What "fastest" is decided by: see `manyhands.reports.figures.speed`."""
        return self.column("rate")

    @cached_property
    def metric(self) -> str | None:
        """What "most accurate" is decided by."""
        return metric(self.comparison, self.kind)

    @property
    def finished(self) -> tuple[Standing, ...]:
        """Those of which a run finished."""
        return tuple(standing for standing in self.standings if standing.runs)


def fields(comparison: Comparison) -> tuple[Field, ...]:
    """The fields of a comparison: live before virtual, most workers first."""
    conditions = dict.fromkeys(run.condition for run in comparison.runs)
    return tuple(
        field
        for kind in ("live", "virtual")
        for condition in conditions
        for field in _fields(comparison, kind, condition)
    )


def _fields(comparison: Comparison, kind: Kind, condition: str) -> Iterable[Field]:
    """The fields of one kind under the same conditions, most workers first."""
    runs = [run for run in comparison.runs if (run.kind, run.condition) == (kind, condition)]
    alone = _alone(runs)
    sizes = {run.workers for run in runs if not _is_alone(run)} or {1}
    for workers in sorted(sizes, reverse=True) if runs else ():
        competing = [run for run in runs if run.workers == workers or _is_alone(run)]
        standings = tuple(_standings(comparison, competing, alone))
        yield Field(comparison, kind, workers, standings, condition)


def metric(comparison: Comparison, kind: Kind) -> str | None:
    """The target's metric, else accuracy, else one that is no loss, else whatever there is."""
    known = _metrics(comparison, kind)
    wanted = [read_target(comparison.target)[0]] if comparison.target else []
    wanted += ["accuracy", *(name for name in known if not lower_is_better(name)), *known]
    return next((name for name in wanted if name in known), None)


def ordered(comparison: Comparison) -> tuple[str, ...]:
    """The strategies, one worker alone first, then as they were named, then as they were run."""
    runs = [run.strategy for run in comparison.runs]
    first = [ALONE] if ALONE in runs else []
    return tuple(dict.fromkeys([*first, *(s for s in comparison.strategies if s in runs), *runs]))


def _standings(
    comparison: Comparison, runs: list[RunResult], alone: Mapping[str, Mapping[int, float]]
) -> Iterable[Standing]:
    budget = _budget(comparison, runs)
    for strategy in ordered(comparison):
        of_strategy = sorted(
            (run for run in runs if run.strategy == strategy), key=lambda run: run.repeat
        )
        if of_strategy:
            yield Standing(
                strategy=strategy,
                workers=of_strategy[0].workers,
                runs=tuple(run for run in of_strategy if run.status == "finished"),
                failures=tuple(run for run in of_strategy if run.status != "finished"),
                yardstick=Yardstick(
                    alone=alone.get(ALONE) or alone.get(strategy) or {},
                    budget=budget,
                    metric=metric(comparison, runs[0].kind),
                ),
            )


def _is_alone(run: RunResult) -> bool:
    """Whether it is one worker alone, also with a swept learning rate."""
    return ALONE in {run.strategy, run.curve}


def _alone(runs: list[RunResult]) -> dict[str, dict[int, float]]:
    """Samples per second of one worker, by strategy and repeat."""
    rates: dict[str, dict[int, float]] = {}
    for run in runs:
        if run.workers == 1 and run.status == "finished" and run.rate > 0:
            rates.setdefault(run.strategy, {})[run.repeat] = run.rate
    return rates


def _budget(comparison: Comparison, runs: list[RunResult]) -> dict[int, float]:
    """Seconds within which accuracy counts, by repeat."""
    finished = [run for run in runs if run.status == "finished"]
    given = comparison.budget_seconds
    if given is not None:
        # Runs that were stopped by it trained within it, though their last evaluation ended later.
        stopped = comparison.job.get("seconds") in {str(given), f"{given:g}"}
        return dict.fromkeys((run.repeat for run in finished), math.inf if stopped else given)
    shortest: dict[int, float] = {}
    for run in finished:
        shortest[run.repeat] = min(run.seconds, shortest.get(run.repeat, run.seconds))
    return shortest


def budget_words(comparison: Comparison) -> str:
    """The budget of the third question."""
    if comparison.budget_seconds is None:
        return "the time that the fastest took"
    return duration(comparison.budget_seconds)


def _columns(comparison: Comparison, kind: Kind) -> list[Column]:
    return columns(
        _metrics(comparison, kind),
        metric(comparison, kind),
        budget_words(comparison),
        comparison.target or "",
        comparison.currency,
    )


def _metrics(comparison: Comparison, kind: Kind) -> list[str]:
    """All validation metrics, accuracy first and losses last."""
    names = {name for run in comparison.runs if run.kind == kind for name in run.validation}
    return sorted(names, key=lambda name: (name != "accuracy", lower_is_better(name), name))
