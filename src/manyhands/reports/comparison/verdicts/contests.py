"""Contests: the questions that a comparison answers, put to the strategies of a field.

Which strategy reaches the target first, which is fastest, which is most accurate in the end, and
which within the budget. Figures are compared repeat by repeat; the best is the one with the best
mean of what is compared, so that one bad run of three counts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from manyhands.reports.comparison.columns import Column
from manyhands.reports.comparison.standings import Field, Standing
from manyhands.reports.comparison.statistics import Difference, Repeats, gap, middle, ratio
from manyhands.reports.comparison.verdicts.reaching import penalised, typical

Question = Literal["target", "speed", "end", "budget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """One question, put to the strategies of a field."""

    question: Question
    column: Column
    best: Standing
    differences: Mapping[str, Difference]
    """How every other strategy stands to the best one, the next best first: times it in speed and
    in seconds, minus it in accuracy."""

    @property
    def behind(self) -> tuple[str, ...]:
        """Worse than the best by more than the margin."""
        worse = "more" if self.column.better == "lower" else "less"
        return self._answered(worse)

    @property
    def even(self) -> tuple[str, ...]:
        """Not further from the best than the margin."""
        return self._answered("same")

    @property
    def open(self) -> tuple[str, ...]:
        """Those whose runs are too few to tell."""
        return tuple(
            name for name in self.differences if name not in self.behind and name not in self.even
        )

    @property
    def winner(self) -> str | None:
        """The best one, if all others are behind it."""
        return None if self.even or self.open else self.best.strategy

    @property
    def is_open(self) -> bool:
        """Whether no strategy can be distinguished from the best."""
        return bool(self.open) and len(self.open) == len(self.differences)

    @property
    def by_factor(self) -> bool:
        """Whether differences are ratios."""
        return _by_factor(self.question, self.column)

    def apparently_behind(self, margin: float) -> tuple[str, ...]:
        """Those that were worse by more than the margin, in runs that are too few to tell.

        Args:
            margin: the comparison's, for figures of this kind.
        """
        found = []
        for name in self.open:
            estimate = self.differences[name].estimate
            if estimate is None:
                continue
            if self.by_factor:
                worse = estimate if self.column.better == "lower" else 1 / estimate
                is_behind = worse > 1 + margin
            else:
                is_behind = (estimate if self.column.better == "lower" else -estimate) > margin
            if is_behind:
                found.append(name)
        return tuple(found)

    def _answered(self, answer: str) -> tuple[str, ...]:
        return tuple(name for name, each in self.differences.items() if each.answer == answer)


def contests(field: Field) -> dict[Question, Contest]:
    """The questions that the runs of a field answer."""
    asked: list[tuple[Question, Column | None]] = [
        ("speed", field.speed),
        ("end", field.column(f"final_{field.metric}")),
        ("budget", field.column("within")),
    ]
    found = [_to_target(field), *(_contest(field, *one) for one in asked if one[1])]
    return {contest.question: contest for contest in found if contest}


def _by_factor(question: Question, column: Column) -> bool:
    """Times, speeds and losses differ by a factor; accuracies, which end at 1, by points."""
    return question == "speed" or column.better == "lower"


def _to_target(field: Field) -> Contest | None:
    """Who reaches the target first; runs that missed it, or failed, count as `reaching` says."""
    column = field.column("time_to_target")
    seconds = penalised({one.strategy: one.attempts for one in field.standings})
    if column is None or not seconds:
        return None
    return _judged(field, "target", column, seconds, lambda each: typical(each.values()))


def _contest(field: Field, question: Question, column: Column | None) -> Contest | None:
    if column is None:
        return None
    repeats = {
        standing.strategy: found
        for standing in field.finished
        # Who has no figure in some repeat is not in this contest: it would compete in the others.
        if len(found := standing.repeats(column)) == len(standing.runs)
    }
    # What a machine does beside a run slows one repeat of three; what a strategy learns is its own.
    central = _median if question == "speed" else _mean
    return _judged(field, question, column, repeats, central) if repeats else None


def _judged(
    field: Field,
    question: Question,
    column: Column,
    repeats: Mapping[str, Repeats],
    central: Callable[[Repeats], float],
) -> Contest:
    sign = 1 if column.better == "lower" else -1
    taking_part = [one for one in field.standings if one.strategy in repeats]
    ranked = sorted(taking_part, key=lambda one: sign * central(repeats[one.strategy]))
    best = ranked[0]
    by_factor = _by_factor(question, column)
    differences = {
        standing.strategy: (
            ratio(repeats, standing.strategy, best.strategy, field.comparison.margin)
            if by_factor
            else gap(repeats, standing.strategy, best.strategy, field.comparison.accuracy_margin)
        )
        for standing in ranked[1:]
    }
    return Contest(question=question, column=column, best=best, differences=differences)


def _median(repeats: Repeats) -> float:
    found = middle(list(repeats.values()))
    return found.value if found else 0.0


def _mean(repeats: Repeats) -> float:
    return sum(repeats.values()) / len(repeats)
