"""A comparison's verdict: one recommendation, and then the reasons, a line each.

The reasons answer the questions of a comparison (which strategy reaches the target first, which is
fastest, which is most accurate in the end, which is most accurate within the budget), say what the
time of the slowest went to, and name the runs that failed. Nothing is said that the runs cannot
tell.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from manyhands.reports.comparison.columns import Column, metric_value
from manyhands.reports.comparison.results import PARTS, Comparison, RunResult, VerdictRecord
from manyhands.reports.comparison.standings import (
    ALONE,
    Field,
    Kind,
    Standing,
    budget_words,
    fields,
)
from manyhands.reports.comparison.statistics import middle, ratio
from manyhands.reports.comparison.verdicts.contests import Contest, Question, contests
from manyhands.reports.comparison.verdicts.reaching import share_reached
from manyhands.reports.comparison.verdicts.recommendation import recommend
from manyhands.reports.formatting import count, duration, listed, percent, plural

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
class Verdict:
    """What the runs of one field say."""

    kind: Kind
    workers: int
    contests: Mapping[Question, Contest]
    recommendation: str
    """A sentence; more where runs failed or missed the target."""
    strategy: str | None
    """The one that is recommended, if one is."""
    reasons: tuple[str, ...]
    """A line for every answer, and why."""

    @property
    def words(self) -> str:
        """All of it, a line each."""
        return "\n".join((self.recommendation, *self.reasons))


def verdict_records(comparison: Comparison) -> tuple[VerdictRecord, ...]:
    """The verdicts of all fields, as `results.json` has them."""
    return tuple(
        VerdictRecord(
            kind=field.kind,
            workers=field.workers,
            condition=field.conditions,
            recommendation=found.recommendation,
            reasons=found.reasons,
            strategy=found.strategy,
            failed=sum(len(standing.failures) for standing in field.standings),
        )
        for field in fields(comparison)
        for found in (judge(field),)
    )


def verdict(comparison: Comparison) -> Verdict | None:
    """That of the comparison's first field: live where there is any, with the most workers."""
    found = fields(comparison)
    return judge(found[0]) if found else None


def judge(field: Field) -> Verdict:
    """The answers of a field and the reason."""
    found = contests(field)
    recommended = recommend(field, found)
    return Verdict(
        kind=field.kind,
        workers=field.workers,
        contests=found,
        recommendation=recommended.words,
        strategy=recommended.strategy,
        reasons=tuple(filter(None, _reasons(field, found))),
    )


def _reasons(field: Field, contests: Mapping[Question, Contest]) -> Iterator[str]:
    speed, end, budget = contests.get("speed"), contests.get("end"), contests.get("budget")
    yield from _failed(field)
    if speed is None:
        return
    if target := contests.get("target"):
        yield f"Target: {_first(field, target)}."
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


def _failed(field: Field) -> Iterator[str]:
    """The runs that failed, by strategy and reason."""
    for standing in field.standings:
        reasons: dict[str, int] = {}
        for run in standing.failures:
            reasons[run.failure] = reasons.get(run.failure, 0) + 1
        for words, runs in reasons.items():
            yield f"Failed: {runs} of {standing.made} runs of {standing.strategy}: {words}."


def _first(field: Field, contest: Contest) -> str:
    """Who reaches the target first, and who does not reach it in every run."""
    wanted, best = field.comparison.target, contest.best
    found = best.middle(contest.column)
    after = duration(found.value) if found else ""
    missed = [one for one in field.standings if one.reached < one.made]
    behind = [one.strategy for one in missed if one.strategy in contest.behind]
    of_all = {standing.strategy: standing for standing in field.standings}
    if not contest.differences:
        words = f"{best.strategy} reached {wanted} after {after}"
    elif contest.winner:
        lead = "" if next(iter(contest.differences)) in behind else f", {_lead(contest)}"
        words = f"{best.strategy} reaches {wanted} first (after {after}{lead})"
    elif contest.open:
        words = (
            f"{best.strategy} reached {wanted} first (after {after}), with not enough runs to tell "
            f"it from {_those(contest)}"
        )
    else:
        words = (
            f"{listed([best.strategy, *contest.even])} reach {wanted} equally soon: no difference "
            f"larger than {_margin(field, contest)} (after {after})"
        )
    if not missed:
        return words
    order = [of_all[name] for name in (best.strategy, *contest.differences)]
    each = []
    for one in order:
        low, high = (f"{100 * end:.0f}" for end in share_reached(one.reached, one.made))
        each.append(f"{one.strategy} in {one.reached} of {one.made} runs ({low} to {high} %)")
    return f"{words}; reached by {listed(each)}"


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
    if contest.question == "target":
        return f"{next_best.estimate:.2f} times as long under {name}"
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
