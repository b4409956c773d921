"""The table of a page: a row for every figure, a column for every strategy.

On a narrow screen every row becomes a card that lists the strategies. Each cell carries its value
in `data-value`, as it was computed, for programs that read the page.
"""

from collections.abc import Mapping

from manyhands.reports.comparison.columns import SECTIONS, Column
from manyhands.reports.comparison.standings import Field, Standing
from manyhands.reports.comparison.statistics import Difference, Middle
from manyhands.reports.comparison.verdict import Verdict
from manyhands.reports.comparison.verdicts.contests import Contest
from manyhands.reports.formatting import plural
from manyhands.reports.page.markup import Markup, element, joined
from manyhands.reports.page.palette import Look
from manyhands.reports.page.swatch import named


def sheet(field: Field, verdict: Verdict, looks: Mapping[str, Look]) -> Markup:
    """All figures of a field."""
    contests = {contest.column.name: contest for contest in verdict.contests.values()}
    head = element(
        "thead",
        element(
            "tr",
            element("th", "Figure", scope="col"),
            *(
                element(
                    "th",
                    element("span", named(standing.strategy, looks), class_="name"),
                    element("small", _on(standing)),
                    scope="col",
                )
                for standing in field.standings
            ),
        ),
    )
    bodies = []
    for section, title in SECTIONS.items():
        rows = [
            _row(field, column, contests.get(column.name), looks)
            for column in field.columns
            if column.section == section
        ]
        if rows:
            across = str(1 + len(field.standings))
            heading = element("tr", element("th", title, colspan=across, scope="rowgroup"))
            bodies.append(element("tbody", heading, *rows))
    columns = str(len(field.standings))
    table = element("table", head, *bodies, class_="sheet", style=f"--columns:{columns}")
    return element("div", table, class_="scroll")


def _on(standing: Standing) -> str:
    runs = len(standing.runs)
    failed = f", {len(standing.failures)} failed" if standing.failures else ""
    workers = f"{standing.workers} worker{plural(standing.workers)}"
    return f"{workers}, {runs} run{plural(runs)}{failed}"


def _row(
    field: Field, column: Column, contest: Contest | None, looks: Mapping[str, Look]
) -> Markup:
    middles = [standing.middle(column) for standing in field.standings]
    most = max((found.high for found in middles if found), default=0.0)
    return element(
        "tr",
        element(
            "th",
            element("span", column.title, class_="title"),
            *([element("span", column.unit, class_="unit")] if column.unit else []),
            element("small", column.explanation),
            scope="row",
        ),
        *(
            _cell(standing, column, found, most, contest, looks)
            for standing, found in zip(field.standings, middles, strict=True)
        ),
    )


def _cell(
    standing: Standing,
    column: Column,
    found: Middle | None,
    most: float,
    contest: Contest | None,
    looks: Mapping[str, Look],
) -> Markup:
    name = element("span", named(standing.strategy, looks), class_="whose")
    if found is None:
        missed = contest is not None and contest.question == "target"
        words = f"not reached in {standing.made} runs" if missed else "–"
        return element("td", name, element("span", words, class_="value none"))
    parts = [element("span", column.show(found.value), class_="value")]
    low, high = column.show(found.low), column.show(found.high)
    if low != high:
        parts.append(element("small", f"{low} – {high}", class_="spread"))
    if found.runs < standing.made:
        parts.append(element("small", f"{found.runs} of {standing.made} runs"))
    if contest:
        parts += _chips(contest, standing.strategy)
    full = column.full or most
    width = 100 * min(1.0, found.value / full) if full > 0 else 0.0
    return element(
        "td",
        name,
        element("span", joined(*parts), class_="figure"),
        data_column=column.name,
        data_strategy=standing.strategy,
        data_workers=str(standing.workers),
        data_value=repr(found.value),
        style=f"--share:{width:.1f}%;--colour:{looks[standing.strategy].colour}",
    )


def _chips(contest: Contest, strategy: str) -> list[Markup]:
    """How a strategy stands in a contest, in words and as an interval."""
    first, worse = {"speed": ("fastest", "slower"), "target": ("soonest", "later")}.get(
        contest.question, ("most accurate", "less accurate")
    )
    if strategy == contest.best.strategy:
        return [_chip(first if contest.winner else "best median", "good")]
    difference = contest.differences.get(strategy)
    if difference is None:
        return []
    if strategy in contest.behind:
        chip = _chip(worse, "bad")
    elif strategy in contest.even:
        chip = _chip("no difference that matters", "even")
    else:
        chip = _chip("not enough runs to tell", "open")
    return [chip, element("small", _interval(contest, difference))]


def _chip(words: str, tone: str) -> Markup:
    return element("span", words, class_=f"chip {tone}")


def _interval(contest: Contest, difference: Difference) -> str:
    is_share = contest.by_factor and contest.column.better == "higher"

    def show(value: float) -> str:
        if is_share:
            return f"{100 * value:.0f} %"
        if contest.by_factor:
            return f"{value:.2f}"
        scale = 100 if contest.column.unit == "%" else 1
        return f"{scale * value:+.2g}".replace("-", "−")

    unit = " of the best" if is_share else " times the best" if contest.by_factor else ""
    if contest.column.unit == "%" and not contest.by_factor:
        unit = " points"
    if difference.estimate is None:
        return ""
    if difference.low is None or difference.high is None:
        return f"{show(difference.estimate)}{unit}"
    return f"{show(difference.estimate)}{unit} ({show(difference.low)} to {show(difference.high)})"
