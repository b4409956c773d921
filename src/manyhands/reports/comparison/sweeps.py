"""Sweeps of a comparison: figures over the values of an option, and which value is best.

A point of a curve is a standing: its figure is the median over repeats, with its interval. Values
are compared as strategies are, repeat by repeat (`statistics`), so "best" is said of a value only
if it is better than each other one by more than the margin.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from manyhands.reports.comparison.columns import Column
from manyhands.reports.comparison.results import CONDITIONS, Comparison, RunResult
from manyhands.reports.comparison.standings import Field, Kind, Standing, fields
from manyhands.reports.comparison.statistics import Difference, gap, ratio
from manyhands.reports.formatting import listed, plural
from manyhands.units import bandwidth, seconds

Value = int | float | str
"""A value of a swept option."""

_GIVEN: Final = (*CONDITIONS, "workers")
"""Options of the runs; all others are those of a strategy, or the learning rate."""
_FACTOR: Final = re.compile(r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)x")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """A value of the swept option, and the runs that had it."""

    value: Value
    field: Field
    standing: Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCurve:
    """The points of one strategy under the same conditions, in the order of their values."""

    name: str
    points: tuple[SweepPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A swept option of runs of one kind."""

    option: str
    kind: Kind
    curves: tuple[SweepCurve, ...]
    comparators: tuple[SweepPoint, ...]
    """Strategies without the option, drawn as horizontal lines."""

    @property
    def is_choice(self) -> bool:
        """Whether a value can be recommended: conditions are given, not chosen."""
        return self.option not in CONDITIONS

    @property
    def values(self) -> tuple[Value, ...]:
        """All values, in order."""
        found = dict.fromkeys(point.value for curve in self.curves for point in curve.points)
        return tuple(sorted(found, key=lambda value: _order(self.option, value)))

    @property
    def columns(self) -> tuple[Column, ...]:
        """The figures that are drawn over the option, of those that any run has."""
        points = [point for curve in self.curves for point in curve.points]
        metric = next((p.field.metric for p in points if p.field.metric), None)
        named = ("time_to_target", f"final_{metric}", "rate", "staleness_mean")
        found: dict[str, Column] = {}
        for name in named:
            for point in points:
                column = point.field.column(name)
                if column is not None and point.standing.middle(column):
                    found[name] = column
                    break
        return tuple(found.values())


def position(option: str, value: Value) -> float | None:
    """The value on the axis of its option; None if it is not a number.

    >>> position("bandwidth", "10mbit"), position("lr", "0.5x"), position("graph", "ring")
    (1250000.0, 0.5, None)
    """
    if not isinstance(value, str):
        return float(value)
    try:
        if option == "bandwidth":
            return bandwidth(value)
        if option == "latency":
            return seconds(value)
    except ValueError:
        return None
    match = _FACTOR.fullmatch(value)
    return float(match[1]) if match else None


def sweeps(comparison: Comparison) -> tuple[Sweep, ...]:
    """The swept options of a comparison, in the order in which runs name them."""
    every = fields(comparison)
    found = []
    for option in dict.fromkeys(name for run in comparison.runs for name in run.swept):
        for kind in dict.fromkeys(field.kind for field in every):
            of_kind = [field for field in every if field.kind == kind]
            curves: dict[str, list[SweepPoint]] = {}
            comparators: dict[tuple[str, str], SweepPoint] = {}
            for point, run in _points(of_kind, option):
                if option in run.swept:
                    curves.setdefault(_name(run, option), []).append(point)
                elif not set(run.swept) - set(_GIVEN):
                    comparators.setdefault((run.strategy, run.condition), point)
            if curves:
                found.append(
                    Sweep(
                        option=option,
                        kind=kind,
                        curves=tuple(_curve(option, *each) for each in curves.items()),
                        comparators=tuple(comparators.values()),
                    )
                )
    return tuple(found)


def _points(of_kind: list[Field], option: str) -> Iterator[tuple[SweepPoint, RunResult]]:
    for field in of_kind:
        for standing in field.standings:
            run = (*standing.runs, *standing.failures)[0]
            value = run.swept.get(option, "")
            yield SweepPoint(value=value, field=field, standing=standing), run


def _curve(option: str, name: str, points: list[SweepPoint]) -> SweepCurve:
    ordered = sorted(points, key=lambda point: _order(option, point.value))
    return SweepCurve(name=name, points=tuple(ordered))


def _order(option: str, value: Value) -> float:
    """Numbers by size; other values, as sorting is stable, as they were run."""
    at = position(option, value)
    return math.inf if at is None else at


def _name(run: RunResult, option: str) -> str:
    """The curve that a run is a point of: all about it but the swept option."""
    rest = {name: value for name, value in run.swept.items() if name != option}
    if option in _GIVEN:
        rest = {name: value for name, value in rest.items() if name in _GIVEN}
    name = run.strategy if option in _GIVEN else run.curve
    return ", ".join((name, *(f"{key}={value}" for key, value in rest.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class BestValue:
    """The value of an option with the best figure, and how sure that is."""

    column: Column
    point: SweepPoint
    differences: Mapping[str, Difference]
    """How every other value stands to it: a ratio, or a difference of accuracies."""

    def answer(self, value: Value) -> str:
        """How a value stands to the best one: "behind", "even" or "unknown"; "" for itself."""
        found = self.differences.get(str(value))
        if found is None:
            return ""
        worse = "more" if self.column.better == "lower" else "less"
        return {worse: "behind", "same": "even"}.get(found.answer, "unknown")


def best(curve: SweepCurve, column: Column) -> BestValue | None:
    """The best value of a curve's option by a figure; None if fewer than two values have it."""
    repeats = {
        str(point.value): found
        for point in curve.points
        # A value without the figure in some repeat, or of which a run failed, would compete in the
        # others only: it is left out.
        if (found := point.standing.repeats(column)) and len(found) == point.standing.made
    }
    medians = [
        (point, median.value)
        for point in curve.points
        if str(point.value) in repeats and (median := point.standing.middle(column))
    ]
    if len(medians) < 2:
        return None
    sign = 1 if column.better == "lower" else -1
    first, _ = min(medians, key=lambda entry: sign * entry[1])
    by_points = column.better == "higher" and column.name.startswith("final_")
    comparison = first.field.comparison
    differ, margin = (gap, comparison.accuracy_margin) if by_points else (ratio, comparison.margin)
    own = str(first.value)
    differences = {name: differ(repeats, name, own, margin) for name in repeats if name != own}
    return BestValue(column=column, point=first, differences=differences)


def answers(sweep: Sweep) -> list[str]:
    """Which value is best for every curve and figure, a sentence each."""
    if not sweep.is_choice:
        return []
    columns = [column for column in sweep.columns if column.name != "staleness_mean"]
    found = ((curve, best(curve, column)) for curve in sweep.curves for column in columns)
    return [_sentence(sweep, curve, each) for curve, each in found if each is not None]


def _sentence(sweep: Sweep, curve: SweepCurve, found: BestValue) -> str:
    column, comparison = found.column, found.point.field.comparison
    median = found.point.standing.middle(column)
    unit = "" if column.unit in {"no unit", "of 1"} else f" {column.unit}"
    figure = f"{column.show(median.value)}{unit}" if median else ""
    title = column.title.removesuffix(" in the end")
    whose = f"{curve.name}: " if len(sweep.curves) > 1 else ""
    words = f"{whose}{title} is best at {sweep.option}={found.point.value} ({figure})"
    margin = f"{100 * comparison.margin:g} %"
    if column.name.startswith("final_") and column.better == "higher":
        points = 100 * comparison.accuracy_margin
        margin = f"{points:g} point{plural(f'{points:g}')}"
    values = [point.value for point in curve.points]
    even = [str(value) for value in values if found.answer(value) == "even"]
    open_ = [str(value) for value in values if found.answer(value) == "unknown"]
    known = {str(found.point.value), *found.differences}
    absent = [str(value) for value in values if str(value) not in known]
    if not even and not open_ and not absent:
        return f"{words}; every other value is worse by more than {margin}."
    parts = [words]
    if even:
        parts.append(f"no difference larger than {margin} to {listed(even)}")
    if open_:
        runs = len(found.point.standing.runs)
        parts.append(f"{runs} run{plural(runs)} of each cannot tell it from {listed(open_)}")
    if len(even) + len(open_) < len(found.differences):
        parts.append(f"the others are worse by more than {margin}")
    if absent:
        parts.append(f"not every run of {listed(absent)} has this figure")
    return f"{'; '.join(parts)}."
