"""Whether a comparison that was made again came out the same.

Virtual runs must be equal to the bit: every figure, every point of every curve, every count of the
staleness histogram and the final parameters. Only the folder and the times of day are not compared.

Live runs are measured, and two of them are never equal. For each figure of each strategy, the
stored repeats (n of them, with mean a and standard deviation s) predict the mean of m new ones:

    a ± (t · s · √(1/n + 1/m) + margin)

with Student's t. Speeds, times, losses and bytes are compared by their logarithms and the margin of
speed; accuracies and other scores by their values and the margin of accuracy; staleness by its
value and the margin of speed of its mean. s is pooled over all strategies of the comparison, or the
strategy's own where that is larger. t is chosen so that all figures together have a chance of at
most 5 % that an equal one lies outside its interval (Bonferroni). With one repeat of everything the
spread is unknown, and the interval is the margin alone.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from manyhands.reports.comparison.columns import Column
from manyhands.reports.comparison.results import Comparison, RunResult
from manyhands.reports.comparison.standings import fields
from manyhands.reports.comparison.statistics import student

_CHANCE: Final = 0.05
"""That any figure of an equal comparison is called different."""
_NOT_COMPARED: Final = frozenset(("folder", "started", "ended", "words"))
_FIGURES: Final = ("rate", "time_to_target", "sent_per_sample", "staleness_mean")
"""Columns that are compared; so is the final value of every metric."""
_MOST: Final = 5
"""Differences of one run that are named."""

_Key = tuple[str, str]
"""The label of a strategy on its number of workers, and the name of a column."""


@dataclass(frozen=True, kw_only=True)
class RepeatedFigure:
    """A figure of a strategy: where the stored runs expect it, and what it came out as."""

    label: str
    """The strategy and its number of workers."""
    title: str
    low: str
    high: str
    now: str
    is_within: bool

    def __str__(self) -> str:
        verdict = "within" if self.is_within else "OUTSIDE"
        return f"{self.label}: {self.title} {self.now}, {verdict} {self.low} – {self.high}"


def differences_to_the_bit(stored: Comparison, again: Comparison) -> tuple[str, ...]:
    """How virtual runs differ; empty if all are equal to the bit."""
    return tuple(
        f"{name}: {difference}"
        for name, before, now in _pairs(stored, again)
        for difference in _run_differences(before, now)
    )


def differences_in_status(stored: Comparison, again: Comparison) -> tuple[str, ...]:
    """Which runs finished and now failed, or failed and now finished; empty if none."""
    found = []
    for name, before, now in _pairs(stored, again):
        if now is None:
            found.append(f"{name}: was not made again")
        elif before.status != now.status:
            words = f" ({now.words})" if now.words else ""
            found.append(f"{name}: {before.status} stored, {now.status} now{words}")
    return tuple(found)


def missing_figures(stored: Comparison, again: Comparison) -> tuple[str, ...]:
    """Figures that the stored runs have and the new ones, though they finished, do not."""
    before, now = _figures(stored), _figures(again)
    finished = {label for label, _ in now}
    return tuple(
        f"{label}: {before[label, name][0].title} has no value now"
        for label, name in before
        if label in finished and (label, name) not in now
    )


def repeated_figures(stored: Comparison, again: Comparison) -> tuple[RepeatedFigure, ...]:
    """Every figure of live runs, with the interval in which the stored runs expect it."""
    before, now = _figures(stored), _figures(again)
    common = [key for key in before if key in now]
    confidence = 1 - _CHANCE / max(1, len(common))
    found = []
    for label, name in common:
        column, values = before[label, name]
        alike = [others for (_, other), (_, others) in before.items() if other == name]
        scale = _Scale.of(column, values, stored)
        low, high = scale.interval(values, alike, len(now[label, name][1]), confidence)
        mean = scale.mean(now[label, name][1])
        # Bytes are shown with a unit of their own.
        unit = "" if column.unit in {"no unit", "of 1", "bytes"} else f" {column.unit}"
        found.append(
            RepeatedFigure(
                label=label,
                title=column.title,
                now=f"{column.show(mean)}{unit}",
                low=column.show(low),
                high=f"{column.show(high)}{unit}",
                is_within=low <= mean <= high,
            )
        )
    return tuple(found)


@dataclass(frozen=True)
class _Scale:
    """How values of a figure are compared: by factors or by differences."""

    by_factor: bool
    margin: float
    """On the scale of the values, or of their logarithms."""

    @classmethod
    def of(cls, column: Column, values: Sequence[float], comparison: Comparison) -> "_Scale":
        is_score = column.name.startswith("final_") and column.better == "higher"
        if is_score:
            return cls(by_factor=False, margin=comparison.accuracy_margin)
        if column.name != "staleness_mean" and min(values) > 0:
            return cls(by_factor=True, margin=math.log1p(comparison.margin))
        return cls(by_factor=False, margin=comparison.margin * abs(sum(values) / len(values)))

    def mean(self, values: Sequence[float]) -> float:
        """The mean; by factors the geometric one."""
        return self._back(_mean(self._on(values)))

    def interval(
        self, values: Sequence[float], alike: Iterable[Sequence[float]], new: int, confidence: float
    ) -> tuple[float, float]:
        """Where the mean of so many new values is expected.

        Args:
            values: the stored ones.
            alike: those of all strategies, which tell how much runs differ.
            new: number of new values.
            confidence: of the interval.
        """
        own = self._on(values)
        others = [found for found in map(self._on, alike) if found]
        freedom = sum(len(found) - 1 for found in others)
        half = self.margin
        if freedom:
            spread = sum(map(_squares, others)) / freedom
            if len(own) > 1:
                spread = max(spread, _squares(own) / (len(own) - 1))
            error = math.sqrt(spread * (1 / len(own) + 1 / new))
            half += student(freedom, confidence) * error
        centre = _mean(own)
        return self._back(centre - half), self._back(centre + half)

    def _on(self, values: Sequence[float]) -> list[float]:
        """The values on this scale, without those that are not on it."""
        if not self.by_factor:
            return [*values]
        return [math.log(value) for value in values if value > 0]

    def _back(self, value: float) -> float:
        return math.exp(value) if self.by_factor else value


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _squares(values: Sequence[float]) -> float:
    mean = _mean(values)
    return sum((value - mean) ** 2 for value in values)


def _pairs(
    stored: Comparison, again: Comparison
) -> Iterator[tuple[str, RunResult, RunResult | None]]:
    """Every stored run with its name and the same run now."""
    now = _by_name(again.runs)
    for name, run in _by_name(stored.runs).items():
        yield name, run, now.get(name)


def _by_name(runs: Iterable[RunResult]) -> dict[str, RunResult]:
    return {f"{run.label}, repeat {run.repeat}": run for run in runs}


def _run_differences(before: RunResult, now: RunResult | None) -> list[str]:
    if now is None:
        return ["was not made again"]
    found = [
        difference
        for name in before.__struct_fields__
        if name not in _NOT_COMPARED
        for difference in _differences(
            name, *(msgspec.to_builtins(getattr(run, name)) for run in (before, now))
        )
    ]
    left = len(found) - _MOST
    return [*found[:_MOST], f"and {left} more"] if left > 0 else found


def _differences(name: str, before: Any, now: Any) -> Iterator[str]:
    """How two values differ; of a list, where first."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*before, *now]):
            yield from _differences(f"{name}.{key}", before.get(key), now.get(key))
    elif isinstance(before, (list, tuple)) and isinstance(now, (list, tuple)):
        pairs = enumerate(zip(before, now, strict=False))
        at = next((index for index, (one, other) in pairs if one != other), None)
        if at is not None:
            yield f"{name}[{at}] {before[at]!r} stored, {now[at]!r} now"
        elif len(before) != len(now):
            yield f"{name} has {len(before)} values stored, {len(now)} now"
    elif before != now:
        yield f"{name} {before!r} stored, {now!r} now"


def _figures(comparison: Comparison) -> dict[_Key, tuple[Column, list[float]]]:
    """The repeats of every figure that is compared, with its column."""
    found: dict[_Key, tuple[Column, list[float]]] = {}
    for field in fields(comparison):
        for column in field.columns:
            if column.name not in _FIGURES and not column.name.startswith("final_"):
                continue
            for standing in field.finished:
                values = [*standing.repeats(column).values()]
                if values:
                    found[standing.runs[0].label, column.name] = (column, values)
    return found
