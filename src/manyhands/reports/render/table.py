"""A comparison in the terminal: the figures that decide it, and the verdict, in 80 columns."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from manyhands.assumptions import assumed_words
from manyhands.reports.comparison.columns import Column
from manyhands.reports.comparison.results import Comparison
from manyhands.reports.comparison.standings import Field, Standing, fields, ordered
from manyhands.reports.comparison.sweeps import BestValue, Sweep, SweepPoint, answers, best, sweeps
from manyhands.reports.comparison.verdict import judge
from manyhands.reports.comparison.verdicts.contests import Contest
from manyhands.reports.figures.trace_figures import lower_is_better
from manyhands.reports.formatting import folded, plural

_ABSENT: Final = "–"
_PARTS: Final = {
    "compute": "comp",
    "wait": "wait",
    "communication": "comm",
    "coding": "coding",
    "data": "data",
    "evaluation": "eval",
    "other": "other",
}
"""Headings that leave room for the figures."""
_REST: Final = {
    "sent_per_sample": "sent/sample",
    "between_per_sample": "between",
    "staleness_mean": "staleness",
    "staleness_p99": "99 % within",
}
_CODECS: Final = {"sent_per_sample": "sent/sample", "coding": "coding, %"}
"""What a codec saves and takes; what is learnt stands beside it."""
_WIDTH: Final = 80
"""Columns of a terminal that tables fit into."""
_LONGEST: Final = 34
"""Letters of a strategy's name in a line; a longer one goes on in the next."""


def table(comparison: Comparison) -> RenderableType:
    """What a comparison has found so far, for rich to print or to show while runs go on.

    Live runs stand before virtual ones, in tables of their own.
    """
    swept = sweeps(comparison)
    found = fields(comparison)
    parts: list[RenderableType] = []
    for field in () if swept else found:
        alike = [each.workers for each in found if each.kind == field.kind]
        # One worker is what the others are held against; it has its line in the scaling table.
        if field.workers > 1 or alike == [1]:
            parts += _field(field)
        if field.workers == min(alike) and len(alike) > 1:
            parts.append(_scaling([each for each in found if each.kind == field.kind]))
    for sweep in swept:
        parts += _sweep(sweep)
    if swept:
        parts.append(_recommendations(found))
    parts += (
        Text(f"{run.label}, repeat {run.repeat + 1}: {run.failure}", style="red")
        for run in comparison.runs
        if run.status == "failed"
    )
    if parts and (assumed := comparison.design and comparison.design.assumed):
        parts.append(Text(f"Assumed: {assumed_words(assumed)}", style="dim"))
        parts += (Text(one.consequence, style="yellow") for one in assumed if one.decides)
    return Group(*(parts or [Text("no run has ended yet", style="dim")]))


def _sweep(sweep: Sweep) -> Iterator[RenderableType]:
    """A table for every curve, ordered by the swept value, and which value is best."""
    columns = sweep.columns
    for curve in sweep.curves:
        yield Text(f"{sweep.kind} runs of {curve.name}", style="bold")
        result = _table(sweep.option)
        marks = [best(curve, column) if sweep.is_choice else None for column in columns]
        for column in columns:
            result.add_column(_heading(column), justify="right")
        for point in curve.points:
            cells = [
                _marked(_figure(point.field, point.standing, column.name, spread=True), mark, point)
                for column, mark in zip(columns, marks, strict=True)
            ]
            result.add_row(str(point.value), *cells)
        yield Padding(result, (0, 0, 1, 0))
    if sweep.comparators:
        result = _table("for comparison")
        for column in columns:
            result.add_column(_heading(column), justify="right")
        for point in sweep.comparators:
            cells = [
                Text(_figure(point.field, point.standing, column.name, spread=True))
                for column in columns
            ]
            result.add_row(_name(f"{point.standing.strategy}{point.field.conditions}"), *cells)
        yield Padding(result, (0, 0, 1, 0))
    lines = [_reason(line) for line in answers(sweep)]
    if lines:
        yield Padding(Group(*lines), (0, 0, 1, 0))


def _marked(figure: str, mark: BestValue | None, point: SweepPoint) -> Text:
    """A figure, green if it is the best and cyan if it is not worse by more than the margin."""
    if mark is None:
        return Text(figure)
    if point == mark.point:
        return Text(figure, style="bold green")
    return Text(figure, style="cyan" if mark.answer(point.value) == "even" else "")


def _recommendations(found: Sequence[Field]) -> RenderableType:
    """What each group of comparable runs says, in a line; where there is one, with its reasons."""
    judged = [judge(field) for field in found if len(field.finished) > 1]
    if len(judged) == 1:
        reasons = (_reason(line) for line in judged[0].reasons)
        return Padding(Group(Text(judged[0].recommendation, style="bold"), *reasons), (0, 0, 1, 0))
    return Padding(Group(*(_reason(each.recommendation) for each in judged)), (0, 0, 1, 0))


def _field(field: Field) -> Iterator[RenderableType]:
    verdict = judge(field)
    runs = f"{field.kind} runs on {field.workers} worker{plural(field.workers)}"
    yield Text(runs, style="bold")
    if field.comparison.cluster:
        yield Text(f"cluster: {field.comparison.cluster}", style="dim")
    if speed := verdict.contests.get("speed"):
        yield from _contested(field, speed, ("speedup", "efficiency", "cost"))
    if target := verdict.contests.get("target"):
        yield from _contested(field, target, ())
    if end := verdict.contests.get("end"):
        others = [
            column.name
            for column in field.columns
            if column.name.startswith("final_")
            and column != end.column
            and not lower_is_better(column.name)
        ]
        yield from _contested(field, end, (*others, "within"))
    yield from _figures(field, "% of the time", _PARTS)
    yield from _figures(field, "traffic and staleness", _REST)
    if field.column("coding"):
        learnt = {} if end is None else {end.column.name: _heading(end.column)}
        yield from _figures(field, "bytes, coding, learning", {**_CODECS, **learnt})
    yield Text(verdict.recommendation, style="bold")
    yield Padding(Group(*(_reason(line) for line in verdict.reasons)), (0, 0, 1, 0))


def _contested(
    field: Field, contest: Contest, further: tuple[str, ...]
) -> Iterator[RenderableType]:
    """A question's figure with its spread and its answer, and figures that belong to it.

    Where one table would be wider than a terminal of 80 columns, they have a table of their own.
    """
    columns = [column for name in further if (column := field.column(name))]
    of_contest = [
        _figure(field, standing, contest.column.name, spread=True) for standing in field.standings
    ]
    answers = [len(_answer(contest, standing)) for standing in field.standings]
    headings = sum(max(8, len(_heading(column)) + 1) for column in columns)
    names = min(_LONGEST, max(len(standing.strategy) for standing in field.standings))
    apart = names + max(map(len, of_contest)) + max(answers) + headings > _WIDTH - 3
    result = _table("strategy")
    result.add_column(_heading(contest.column), justify="right", no_wrap=True)
    result.add_column("of the best" if _is_share(contest) else "against the best", no_wrap=True)
    beside = [] if apart else columns
    for column in beside:
        result.add_column(_heading(column), justify="right", no_wrap=True)
    for standing, figure in zip(field.standings, of_contest, strict=True):
        result.add_row(
            _name(standing.strategy),
            figure,
            _answer(contest, standing),
            *(_figure(field, standing, column.name) for column in beside),
        )
    yield Padding(result, (0, 0, 1, 0))
    if apart:
        yield from _figures(field, "strategy", {one.name: _heading(one) for one in columns})


def _figures(field: Field, title: str, headings: dict[str, str]) -> Iterator[RenderableType]:
    """The figures of these names that any run has, under these headings."""
    shown = {name: heading for name, heading in headings.items() if field.column(name)}
    if not shown:
        return
    result = _table(title)
    for heading in shown.values():
        result.add_column(heading, justify="right", no_wrap=True)
    for standing in field.standings:
        cells = (_figure(field, standing, name) for name in shown)
        result.add_row(_name(standing.strategy), *cells)
    yield Padding(result, (0, 0, 1, 0))


def _reason(line: str) -> RenderableType:
    """A line of the verdict, its continuation indented."""
    result = Table.grid(padding=(0, 1, 0, 0))
    result.add_row("\N{BULLET}", line)
    return result


def _scaling(alike: list[Field]) -> RenderableType:
    """Throughput, speedup and efficiency by the number of workers."""
    result = _table(f"{alike[0].kind} scaling")
    for heading in ("workers", "samples/s", "speedup", "efficiency"):
        result.add_column(heading, justify="right")
    for strategy in ordered(alike[0].comparison):
        lines = {
            standing.workers: (field, standing)
            for field in reversed(alike)
            for standing in field.standings
            if standing.strategy == strategy
        }
        for number, (workers, (field, standing)) in enumerate(sorted(lines.items())):
            result.add_row(
                "" if number else _name(strategy),
                str(workers),
                _figure(field, standing, "rate", spread=True),
                _figure(field, standing, "speedup"),
                _figure(field, standing, "efficiency"),
            )
    return Padding(result, (0, 0, 1, 0))


def _table(first: str) -> Table:
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    result.add_column(first, overflow="fold", max_width=_LONGEST)
    return result


def _name(strategy: str) -> str:
    """A strategy in lines that the first column has room for."""
    return "\n".join(folded(strategy, _LONGEST))


def _heading(column: Column) -> str:
    if column.name == "rate":
        return column.unit
    words = column.title.removesuffix(" in the end").removeprefix("Scaling ").lower()
    if column.name == "within":
        words = "in budget"
    is_short = column.unit in {"%", "s"} and column.name != "efficiency"
    return f"{words}, {column.unit}" if is_short else words


def _figure(field: Field, standing: Standing, name: str, *, spread: bool = False) -> str:
    column = field.column(name)
    found = standing.middle(column) if column else None
    if column is None or found is None:
        return _ABSENT
    unit = {"speedup": "×", "efficiency": " %"}.get(name, "")
    low, high = column.show(found.low), column.show(found.high)
    between = f" ({low}–{high})" if spread and low != high else ""
    missing = f" ({found.runs}/{standing.made})" if found.runs < standing.made else ""
    return f"{column.show(found.value)}{unit}{between}{missing}"


def _answer(contest: Contest, standing: Standing) -> Text:
    if standing is contest.best:
        return Text("best" if contest.differences else "", style="bold green")
    difference = contest.differences.get(standing.strategy)
    if difference is None or difference.estimate is None:
        return Text(_ABSENT)
    if contest.question == "target" and standing.reached < standing.made:
        return _missed(contest, standing)
    by = _by(contest, difference.estimate)
    if standing.strategy in contest.behind:
        return Text(f"{by}, {_worse(contest)}", style="yellow")
    if standing.strategy in contest.even:
        return Text(f"{by}, no difference", style="cyan")
    return Text(f"{by}, too few runs", style="dim")


def _missed(contest: Contest, standing: Standing) -> Text:
    """Where runs missed the target, a ratio of times would be one of penalties."""
    words = f"missed by {standing.made - standing.reached} of {standing.made}"
    if standing.strategy in contest.behind:
        return Text(words, style="yellow")
    return Text(f"{words}, too few runs", style="dim")


def _worse(contest: Contest) -> str:
    return {"speed": "slower", "target": "later"}.get(contest.question, "worse")


def _is_share(contest: Contest) -> bool:
    return contest.by_factor and contest.column.better == "higher"


def _by(contest: Contest, estimate: float) -> str:
    """How one stands to the best: a share of its speed, times its loss, or so many points."""
    if _is_share(contest):
        return f"{100 * estimate:.0f} %"
    if contest.by_factor:
        return f"{estimate:.2f} times it"
    scale, unit = (100, " points") if contest.column.unit == "%" else (1, "")
    return f"{scale * estimate:+.2g}{unit}"
