"""The recommendation of a comparison: which strategy to use, and what speaks against the others.

With a target it is the strategy that reaches it first. Without one it is the fastest of those that
failed least and whose accuracy in the end is not worse. An accuracy that is missing, or that a few
runs cannot tell from a worse one, does not count as good.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from manyhands.reports.comparison.columns import metric_value
from manyhands.reports.comparison.standings import ALONE, Field, Standing
from manyhands.reports.comparison.verdicts.contests import Contest, Question
from manyhands.reports.formatting import listed, plural

_MOST = 3
"""Strategies of which a sentence says why they are not recommended."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to use, in a few sentences."""

    strategy: str | None
    """None where no run has finished, or more have to be made."""
    words: str


def recommend(field: Field, contests: Mapping[Question, Contest]) -> Recommendation:
    """What to use, and what is missing or failed."""
    speed, target = contests.get("speed"), contests.get("target")
    failed = sum(len(standing.failures) for standing in field.standings)
    if speed is None:
        words = f"No run has finished: {failed} failed." if failed else "No run has finished."
        return Recommendation(None, words)
    # Where there was something to run beside it.
    if len(field.standings) > 1 and target:
        return _first_to_target(field, target)
    if field.comparison.target and field.metric and not target:
        return Recommendation(None, _unreached(field, contests.get("end")))
    if not speed.differences:
        return Recommendation(speed.best.strategy, _lonely(field, speed))
    return _fastest(field, speed, contests)


def place(field: Field) -> str:
    """On how many workers of which network, in words."""
    virtual = "virtual " if field.kind == "virtual" else ""
    where = f"on {field.workers} {virtual}worker{plural(field.workers)}{field.conditions}"
    if field.comparison.network and field.kind == "live" and "network=" not in where:
        where += f" ({field.comparison.network})"
    return where


def _reached_words(standings: Iterable[Standing]) -> str:
    """In how many of its runs each of them reached the target."""
    return listed([f"{one.strategy} in {one.reached} of {one.made} runs" for one in standings])


def _use(field: Field, strategy: str) -> str:
    if strategy == ALONE:
        return f"Use {ALONE} and do not distribute"
    return f"Use {strategy} {place(field)}"


def _runs_of_each(standings: Iterable[Standing]) -> str:
    runs = min(standing.made for standing in standings)
    return f"{runs} run{plural(runs)} of each"


def _first_to_target(field: Field, contest: Contest) -> Recommendation:
    chosen: str | None = contest.best.strategy
    wanted, best = field.comparison.target, contest.best
    made = _runs_of_each(field.standings)
    shares = {standing.reached / standing.made for standing in field.standings}
    if contest.is_open and len(shares) == 1:
        chosen = None
        words = f"Make more runs {place(field)}: {made} cannot tell which reaches {wanted} first."
    elif contest.open:
        words = (
            f"{_use(field, best.strategy)}: none reached {wanted} sooner, but {made} cannot tell "
            f"it from {listed(list(contest.open))}."
        )
    elif contest.even:
        words = (
            f"{_use(field, best.strategy)}: none reached {wanted} sooner, and "
            f"{listed(list(contest.even))} {_are(contest.even)} as soon."
        )
    else:
        words = f"{_use(field, best.strategy)}: it reached {wanted} first."
    if shares != {1.0}:
        words += f" It was reached by {_reached_words(field.standings)}.{_failures(field)}"
    return Recommendation(chosen, words)


def _unreached(field: Field, end: Contest | None) -> str:
    """No run met the target, which is then no order of strategies."""
    words = (
        f"No run reached {field.comparison.target} {place(field)}: give more samples or time, or a "
        "lower target."
    )
    if end and (found := end.best.middle(end.column)):
        value = metric_value(field.metric or "", found.value)
        words += f" {end.best.strategy} had the best {field.metric} in the end ({value})."
    return words + _failures(field)


def _lonely(field: Field, speed: Contest) -> str:
    """Only one strategy has a run that finished."""
    name = speed.best.strategy
    if len(field.standings) > 1:
        return f"Only {name} finished a run {place(field)}.{_failures(field)}"
    words = f"Only {name} was run {place(field)}: there is nothing to compare it with."
    return words + _failures(field)


@dataclass(frozen=True)
class _Able:
    """Which strategies can be recommended, and why others are not."""

    names: Sequence[str]
    """The fastest first."""
    doubts: Mapping[str, str]
    """What speaks against each of the others, after its name."""
    by_failures: bool
    """Whether some are left out because more of their runs failed or have no accuracy."""


def _able(field: Field, speed: Contest, end: Contest | None) -> _Able:
    margins = field.comparison.margin, field.comparison.accuracy_margin
    standings = {standing.strategy: standing for standing in field.finished}
    doubts: dict[str, str] = {}
    if end:
        apparently = end.apparently_behind(margins[0] if end.by_factor else margins[1])
        doubts |= dict.fromkeys(end.behind, "is less accurate")
        for name in apparently:
            values = standings[name].repeats(end.column).values()
            shown = listed([metric_value(field.metric or "", value) for value in values])
            doubts[name] = f"had {field.metric} {shown}, which is not shown to be as good"
    names = [name for name in (speed.best.strategy, *speed.differences) if name not in doubts]
    bad = {name: _bad(field, standings[name]) for name in names}
    shares = {name: sum(each) / standings[name].made for name, each in bad.items()}
    least = min(shares.values())
    for name in names:
        if shares[name] > least:
            doubts[name] = _bad_words(field, standings[name], bad[name])
    return _Able(
        [name for name in names if name not in doubts], doubts, len(set(shares.values())) > 1
    )


def _bad(field: Field, standing: Standing) -> tuple[int, int]:
    """How many of its runs failed, and how many finished without the metric."""
    column = field.column(f"final_{field.metric}")
    known = len(standing.repeats(column)) if column else len(standing.runs)
    return len(standing.failures), len(standing.runs) - known


def _bad_words(field: Field, standing: Standing, bad: tuple[int, int]) -> str:
    failed, unknown = bad
    words = [f"{failed} of its {standing.made} runs failed"] if failed else []
    if unknown:
        words.append(f"{unknown} of its {standing.made} runs ended without {field.metric}")
    return listed(words)


def _fastest(field: Field, speed: Contest, contests: Mapping[Question, Contest]) -> Recommendation:
    end = contests.get("end")
    able = _able(field, speed, end)
    made = _runs_of_each(field.finished)
    if not able.by_failures and all(
        contest.is_open for contest in contests.values() if contest.differences
    ):
        words = f"Make more runs {place(field)}: {made} cannot tell the strategies apart."
        return Recommendation(None, words + _failures(field))
    first, best = able.names[0], speed.best.strategy
    order = (best, *speed.differences)
    faster = [name for name in order[: order.index(first)] if name in able.doubts]
    how = _use(field, first)
    if any(able.doubts[name] != "is less accurate" for name in faster):
        words = f"{how}. {_faster(faster, able.doubts)}."
    elif first != best:
        words = f"{how}: it is the fastest of those with the best {field.metric}."
    elif unclear := [name for name in able.names if name in speed.open]:
        words = f"{how}: none was faster, but {made} cannot tell it from {listed(unclear)}."
    elif level := [name for name in able.names if name in speed.even]:
        words = f"{how}: none is faster, and {listed(level)} {_are(level)} as fast."
    elif set(able.doubts) & {*speed.even, *speed.open}:
        words = f"{how}: none is faster, and it has the best {field.metric}."
    else:
        words = f"{how}: it is the fastest."
    if end and first in end.open:
        words += (
            f" {made.capitalize()} cannot tell whether its {field.metric} is as good as that of "
            f"{end.best.strategy}."
        )
    elif unknown := _bad(field, _of(field, first))[1]:
        words += f" {unknown} of its runs ended without {field.metric}."
    said = [name for name in faster[:_MOST] if name in able.doubts]
    return Recommendation(first, words + _failures(field, said))


def _faster(names: Sequence[str], doubts: Mapping[str, str]) -> str:
    """What speaks against those that were faster than the recommended one."""
    words = "; ".join(f"{name} was faster, but {doubts[name]}" for name in names[:_MOST])
    more = len(names) - _MOST
    return f"{words}; and so on for {more} more" if more > 0 else words


def _failures(field: Field, said: Sequence[str] = ()) -> str:
    """How many runs of each strategy failed, of those of which it was not said."""
    failed = [
        f"{len(one.failures)} of {one.made} runs of {one.strategy}"
        for one in field.standings
        if one.failures and one.strategy not in said
    ]
    return f" {listed(failed)} failed." if failed else ""


def _of(field: Field, strategy: str) -> Standing:
    return next(one for one in field.standings if one.strategy == strategy)


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
