"""A comparison's verdict: one recommendation, and then the reasons, a line each.

The reasons answer three questions (which strategy is fastest, which is most accurate in the end,
which is most accurate within the budget) and say what the time of the slowest went to. Nothing is
said that the runs cannot tell.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from manyhands.reports.comparison.columns import Column, metric_value
from manyhands.reports.comparison.results import PARTS, Comparison, RunResult
from manyhands.reports.comparison.standings import (
    ALONE,
    Field,
    Kind,
    Standing,
    budget_words,
    fields,
)
from manyhands.reports.comparison.statistics import Difference, gap, middle, ratio
from manyhands.reports.formatting import count, duration, listed, percent, plural

Question = Literal["speed", "end", "budget"]

DOING: Final = {
    "compute": "computing",
    "wait": "waiting for other workers",
    "communication": "communication",
    "coding": "encoding and decoding",
    "data": "loading data",
    "evaluation": "evaluation",
    "other": "time that was not recorded",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """One question, put to the strategies of a field."""

    question: Question
    column: Column
    best: Standing
    """With the best median."""
    differences: Mapping[str, Difference]
    """How every other strategy stands to the best one: times it in speed, minus it in accuracy."""

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

    def _answered(self, answer: str) -> tuple[str, ...]:
        return tuple(name for name, each in self.differences.items() if each.answer == answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the runs of one field say."""

    kind: Kind
    workers: int
    contests: Mapping[Question, Contest]
    recommendation: str
    """One sentence."""
    reasons: tuple[str, ...]
    """A line for every answer, and why."""

    @property
    def words(self) -> str:
        """All of it, a line each."""
        return "\n".join((self.recommendation, *self.reasons))


def verdict(comparison: Comparison) -> Verdict | None:
    """That of the comparison's first field: live where there is any, with the most workers."""
    found = fields(comparison)
    return judge(found[0]) if found else None


def judge(field: Field) -> Verdict:
    """The answers of a field and the reason."""
    contests = {contest.question: contest for contest in _contests(field)}
    return Verdict(
        kind=field.kind,
        workers=field.workers,
        contests=contests,
        recommendation=_recommendation(field, contests),
        reasons=tuple(filter(None, _reasons(field, contests))),
    )


def _contests(field: Field) -> list[Contest]:
    asked: list[tuple[Question, Column | None]] = [
        ("speed", field.speed),
        ("end", field.column(f"final_{field.metric}")),
        ("budget", field.column("within")),
    ]
    return [
        contest
        for question, column in asked
        if column and (contest := _contest(field, question, column))
    ]


def _by_factor(question: Question, column: Column) -> bool:
    """Speeds and losses differ by a factor; accuracies, which end at 1, by points."""
    return question == "speed" or column.better == "lower"


def _contest(field: Field, question: Question, column: Column) -> Contest | None:
    repeats = {
        standing.strategy: found
        for standing in field.finished
        # Who has no figure in some repeat is not in this contest: it would compete in the others.
        if len(found := standing.repeats(column)) == len(standing.runs)
    }
    medians = [
        (standing, median.value)
        for standing in field.finished
        if standing.strategy in repeats and (median := standing.middle(column))
    ]
    if not medians:
        return None
    sign = 1 if column.better == "lower" else -1
    best, _ = min(medians, key=lambda entry: sign * entry[1])
    by_factor = _by_factor(question, column)
    differences = {
        standing.strategy: (
            ratio(repeats, standing.strategy, best.strategy, field.comparison.margin)
            if by_factor
            else gap(repeats, standing.strategy, best.strategy, field.comparison.accuracy_margin)
        )
        for standing, _ in sorted(medians, key=lambda entry: sign * entry[1])
        if standing is not best
    }
    return Contest(question=question, column=column, best=best, differences=differences)


def _recommendation(field: Field, contests: Mapping[Question, Contest]) -> str:
    """The fastest of the strategies that are not behind in accuracy in the end."""
    speed, end = contests.get("speed"), contests.get("end")
    if speed is None:
        return "No run has finished."
    virtual = "virtual " if field.kind == "virtual" else ""
    where = f"on {field.workers} {virtual}worker{plural(field.workers)}{field.conditions}"
    if field.comparison.network and field.kind == "live" and "network=" not in where:
        where += f" ({field.comparison.network})"
    if not speed.differences:
        return f"Only {speed.best.strategy} was run {where}: there is nothing to compare it with."
    runs = min(len(standing.runs) for standing in field.finished)
    made = f"{runs} run{plural(runs)} of each"
    if all(contest.is_open for contest in contests.values() if contest.differences):
        return f"Make more runs {where}: {made} cannot tell the strategies apart."
    return _chosen(field, speed, end, where, made)


def _chosen(field: Field, speed: Contest, end: Contest | None, where: str, made: str) -> str:
    """Which strategy to use, and how sure that is."""
    inaccurate, best = end.behind if end else (), speed.best.strategy
    # Those that differ from the fastest are in order of their speed.
    able = [name for name in (best, *speed.differences) if name not in inaccurate]
    how = f"Use {able[0]} {where}"
    if able[0] == ALONE:
        how = f"Use {ALONE} and do not distribute"
    if able[0] != best:
        return f"{how}: it is the fastest of those with the best {field.metric}."
    if unclear := [name for name in able if name in speed.open]:
        return f"{how}: none was faster, but {made} cannot tell it from {listed(unclear)}."
    if level := [name for name in able if name in speed.even]:
        return f"{how}: none is faster, and {listed(level)} {_are(level)} as fast."
    if inaccurate and not speed.winner:
        return f"{how}: none is faster, and it has the best {field.metric}."
    return f"{how}: it is the fastest."


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _reasons(field: Field, contests: Mapping[Question, Contest]) -> Iterator[str]:
    speed, end, budget = contests.get("speed"), contests.get("end"), contests.get("budget")
    if speed is None:
        return
    yield f"Speed: {_fastest(field, speed)}."
    if end and budget and _same(end, budget):
        yield f"In the end, and so within the budget: {_accurate(field, end)}."
    else:
        if end:
            yield f"In the end: {_accurate(field, end)}."
        if budget:
            yield f"Within {budget_words(field.comparison)}: {_accurate(field, budget)}."
    yield _reason(field, speed)
    yield _longer(field, speed)


def _fastest(field: Field, contest: Contest) -> str:
    name, rate = contest.best.strategy, _rate(contest.best, contest.column)
    if not contest.differences:
        return f"{name} ran alone, at {rate}"
    if contest.winner == ALONE:
        return f"one worker alone is fastest ({rate}, {_lead(contest)})"
    if contest.winner:
        return f"{name} is fastest ({rate}, {_lead(contest)})"
    if contest.open:
        return (
            f"{name} had the highest throughput ({rate}), with not enough runs to tell it from "
            f"{_those(contest)}"
        )
    rest = ", and faster than the others" if contest.behind else ""
    return (
        f"{listed([name, *contest.even])} are equally fast: no difference larger than "
        f"{_margin(field, contest)} ({rate}){rest}"
    )


def _accurate(field: Field, contest: Contest) -> str:
    metric = field.metric or ""
    name, best = contest.best.strategy, _metric(contest.best, contest.column, metric)
    if not contest.differences and len(field.finished) > 1:
        return f"only {name} was evaluated ({metric} {best})"
    if not contest.differences:
        return f"{metric} {best}"
    if contest.winner:
        return f"{name} has the best {metric} ({best}, {_lead(contest)})"
    if contest.open:
        return (
            f"{name} had the best {metric} ({best}), with not enough runs to tell it from "
            f"{_those(contest)}"
        )
    of = "the others" if not contest.behind else listed(list(contest.even))
    by = _margin(field, contest)
    return f"{name} ({metric} {best}) and {of} have no difference larger than {by}"


def _those(contest: Contest) -> str:
    several = len(contest.open) > 1
    return "any other" if contest.is_open and several else listed(list(contest.open))


def _lead(contest: Contest) -> str:
    """By how much the best leads the next one."""
    name, next_best = next(iter(contest.differences.items()))
    if next_best.estimate is None:
        return f"before {name}"
    if contest.by_factor:
        if contest.column.better == "lower":
            return f"{next_best.estimate:.2f} times as much under {name}"
        # The figure says how the next one stands to the best; the lead is its inverse.
        return f"{1 / next_best.estimate:.2f} times {name}"
    if contest.column.unit == "%":
        return f"{-100 * next_best.estimate:.2g} points above {name}"
    return f"{-next_best.estimate:.2g} above {name}"


def _longer(field: Field, contest: Contest) -> str:
    """Which strategy may be ahead in a longer run, where that is not the fastest.

    The first epoch happens once; later ones and their evaluations come again and again.
    """
    repeats = {
        standing.strategy: {
            run.repeat: run.later_epoch + (run.evaluation or 0.0)
            for run in standing.runs
            if run.later_epoch
        }
        for standing in field.finished
    }
    best = contest.best.strategy
    if not all(repeats.values()):
        return ""
    shares = {
        name: found.estimate
        for name in contest.differences
        if (found := ratio(repeats, name, best, field.comparison.margin)).answer == "less"
        and found.estimate
    }
    if not shares:
        return ""
    name = min(shares, key=shares.__getitem__)
    return (
        f"A longer run: after the first epoch {name} needs {percent(shares[name])} of the time "
        f"that {best} needs for an epoch and its evaluation, and may overtake it."
    )


def _reason(field: Field, contest: Contest) -> str:
    """What the time of the slowest went to, beyond that of the fastest."""
    best = contest.best
    spent = {standing.strategy: per_thousand(standing) for standing in field.finished}
    # Repeats are compared one by one and times by their medians, so the two may disagree.
    slower = [
        name
        for name in contest.behind
        if sum(spent[name].values()) > sum(spent[best.strategy].values())
    ]
    if not slower:
        return _common(spent)
    loser = max(slower, key=lambda name: sum(spent[name].values()))
    standing = next(each for each in field.finished if each.strategy == loser)
    excess = {part: spent[loser][part] - spent[best.strategy][part] for part in PARTS}
    part = max(PARTS, key=lambda part: excess[part])
    times = sum(spent[loser].values()) / (sum(spent[best.strategy].values()) or 1.0)
    processes = field.comparison.processes_per_core or 0.0
    is_crowded = field.kind == "live" and standing.workers > best.workers and processes > 1
    crowded = f", {processes:.3g} processes to a core" if is_crowded and part == "compute" else ""
    return (
        f"Why: {loser} took {times:.2f} times as long as {best.strategy}, mostly through "
        f"{DOING[part]}: {_share(spent[loser], part)} of its time "
        f"({duration(spent[loser][part])} per 1,000 samples{crowded}), against "
        f"{_share(spent[best.strategy], part)} ({duration(spent[best.strategy][part])}) under "
        f"{best.strategy}."
    )


def _common(spent: Mapping[str, Mapping[str, float]]) -> str:
    """If no strategy is behind: what all of them spend most time on."""
    total = {part: sum(each[part] for each in spent.values()) for part in PARTS}
    part = max(PARTS, key=lambda part: total[part])
    shares = [each[part] / (sum(each.values()) or 1.0) for each in spent.values()]
    span = percent(min(shares))
    if percent(max(shares)) != span:
        span = f"{span.removesuffix(' %')} to {percent(max(shares))}"
    second = max((other for other in PARTS if other != part), key=lambda other: total[other])
    most = max(each[second] / (sum(each.values()) or 1.0) for each in spent.values())
    everybody = "it" if len(spent) == 1 else "all of them"
    return (
        f"Time: {everybody} spent {span} on {DOING[part]} and at most {percent(most)} on "
        f"{DOING[second]}."
    )


def per_thousand(standing: Standing) -> dict[str, float]:
    """Seconds of training per 1,000 samples, by what the workers did in them on average."""

    def of(run: RunResult, part: str) -> float:
        return 1000 * run.shares.get(part, 0.0) * run.seconds / max(1, run.samples)

    found = {part: middle([of(run, part) for run in standing.runs]) for part in PARTS}
    return {part: each.value if each else 0.0 for part, each in found.items()}


def _share(spent: Mapping[str, float], part: str) -> str:
    return percent(spent[part] / (sum(spent.values()) or 1.0))


def _rate(standing: Standing, column: Column) -> str:
    found = standing.middle(column)
    return f"{count(found.value)} samples/s" if found else ""


def _metric(standing: Standing, column: Column, metric: str) -> str:
    found = standing.middle(column)
    return metric_value(metric, found.value) if found else ""


def _margin(field: Field, contest: Contest) -> str:
    """What does not matter in this contest."""
    if contest.by_factor:
        return f"{100 * field.comparison.margin:g} %"
    if contest.column.unit == "%":
        points = f"{100 * field.comparison.accuracy_margin:g}"
        return f"{points} point{plural(points)}"
    return f"{field.comparison.accuracy_margin:g}"


def _same(end: Contest, budget: Contest) -> bool:
    """Whether the two questions are one: all that was trained was trained within the budget."""
    return (
        end.best is budget.best
        and end.differences == budget.differences
        and end.best.repeats(end.column) == budget.best.repeats(budget.column)
    )
