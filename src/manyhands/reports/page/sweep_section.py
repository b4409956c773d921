"""The part of a page on a swept option: curves, which value is best, and a table."""

from collections.abc import Callable

from manyhands.reports.comparison.sweeps import Sweep, answers
from manyhands.reports.page.charts import Chart
from manyhands.reports.page.markup import Markup, element
from manyhands.reports.page.sweep_charts import between, sweep_charts


def sweep_section(sweep: Sweep, badge: Markup, draw: Callable[[Chart], Markup]) -> Markup:
    """The section of one option; `draw` returns the figure of a chart."""
    lines = (element("li", line) for line in answers(sweep))
    return element(
        "div",
        element("h2", badge, f"Sweep over {sweep.option}"),
        element("ul", *lines, class_="reasons"),
        element("div", *map(draw, sweep_charts(sweep)), class_="charts"),
        element("div", _values(sweep), class_="scroll"),
        class_="sweep",
    )


def _values(sweep: Sweep) -> Markup:
    """The figures as a table, ordered by the swept value."""
    columns = sweep.columns
    heads = ["Strategy", sweep.option]
    for column in columns:
        unit = "" if column.unit == "no unit" else f", {column.unit}"
        heads.append(f"{column.title.removesuffix(' in the end')}{unit}")
    rows = [
        (curve.name, str(point.value), point) for curve in sweep.curves for point in curve.points
    ]
    rows += [(point.standing.strategy, "", point) for point in sweep.comparators]
    body = (
        element(
            "tr",
            element("th", name, scope="row"),
            element("td", value),
            *(element("td", between(column, point)) for column in columns),
        )
        for name, value, point in rows
    )
    return element(
        "table",
        element("thead", element("tr", *(element("th", head, scope="col") for head in heads))),
        element("tbody", *body),
        class_="values",
    )
