"""Charts of a sweep: every figure over the values of the option, with error bars."""

from html import escape
from typing import Final

from manyhands.reports.comparison.columns import Column
from manyhands.reports.comparison.statistics import Middle
from manyhands.reports.comparison.sweep_content import WIDE_RANGE
from manyhands.reports.comparison.sweeps import Sweep, SweepCurve, SweepPoint, Value, position
from manyhands.reports.page.charts import Chart, Drawing, drawing
from manyhands.reports.page.palette import Look, looks

_MOST_TICKS: Final = 12


def sweep_charts(sweep: Sweep) -> list[Chart]:
    """A chart of every figure."""
    return [_chart(sweep, column) for column in sweep.columns]


def _chart(sweep: Sweep, column: Column) -> Chart:
    levels = [f"{point.standing.strategy}{point.field.conditions}" for point in sweep.comparators]
    look = looks([*(curve.name for curve in sweep.curves), *levels])
    scale = 100 if column.unit == "%" else 1
    data = [_line(sweep, curve, column, scale, look[curve.name]) for curve in sweep.curves]
    for name, point in zip(levels, sweep.comparators, strict=True):
        if middle := point.standing.middle(column):
            data.append(_level(sweep, name, middle, column, scale, look[name]))
    title = column.title.removesuffix(" in the end")
    unit = "" if column.unit in {"no unit", "of 1"} else f", {column.unit}"
    return Chart(
        name=f"sweep-{sweep.option}-{column.name}",
        title=f"{title} over {sweep.option}",
        explanation=f"{column.explanation} {_bars(sweep, column)}",
        drawing=drawing(
            data,
            xaxis=_axis(sweep),
            yaxis={"title": {"text": f"{title}{unit}"}},
            showlegend=len(data) > 1,
            legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
            height=380,
        ),
    )


def _axis(sweep: Sweep) -> Drawing:
    places = _places(sweep)
    title = {"title": {"text": sweep.option}}
    ticks = {"tickvals": list(places.values()), "ticktext": [str(value) for value in places]}
    numbers = [place for place in places.values() if isinstance(place, float)]
    if len(numbers) < len(places):
        return title | {"type": "category", "categoryarray": list(places.values())}
    wide = min(numbers) > 0 and max(numbers) >= WIDE_RANGE * min(numbers)
    shown = ticks if len(places) <= _MOST_TICKS else {}
    return title | {"type": "log" if wide else "linear"} | shown


def _places(sweep: Sweep) -> dict[Value, float | str]:
    """Where every value is on the axis: by its size, or by its name if one has no size."""
    found = {value: position(sweep.option, value) for value in sweep.values}
    if any(place is None for place in found.values()):
        return {value: str(value) for value in found}
    return {value: place for value, place in found.items() if place is not None}


def _bars(sweep: Sweep, column: Column) -> str:
    """What the error bars reach between."""
    points = [point for curve in sweep.curves for point in curve.points]
    found = [middle for point in points if (middle := point.standing.middle(column))]
    full = all(len(point.standing.repeats(column)) == len(point.standing.runs) for point in points)
    some = "" if full else "; open marks: not every run has the figure"
    if all(middle.runs == 1 for middle in found):
        return "One run of each value."
    if any(middle.is_range for middle in found):
        return f"Median of the repeats; bars reach from the lowest to the highest{some}."
    return f"Median of the repeats; bars are its 90 % interval{some}."


def _line(sweep: Sweep, curve: SweepCurve, column: Column, scale: int, look: Look) -> Drawing:
    found = [
        (point, middle)
        for point in curve.points
        if (middle := point.standing.middle(column)) is not None
    ]
    places = _places(sweep)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escape(curve.name),
        "x": [places[point.value] for point, _ in found],
        "y": [scale * middle.value for _, middle in found],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [scale * (middle.high - middle.value) for _, middle in found],
            "arrayminus": [scale * (middle.value - middle.low) for _, middle in found],
            "thickness": 1.5,
            "width": 4,
        },
        "line": {"color": look.colour, "dash": look.dash or "solid", "width": 2.5},
        "marker": {
            "color": look.colour,
            "symbol": [
                look.symbol if middle.runs == len(point.standing.runs) else f"{look.symbol}-open"
                for point, middle in found
            ],
            "size": 8,
        },
        "text": [
            escape(f"{sweep.option}={point.value}: {between(column, point)}") for point, _ in found
        ],
        "hovertemplate": "%{text}",
    }


def between(column: Column, point: SweepPoint) -> str:
    """A figure of a point with its interval."""
    middle = point.standing.middle(column)
    if middle is None:
        return "–"
    runs = len(point.standing.runs)
    some = f", {middle.runs} of {runs} runs" if middle.runs < runs else ""
    return f"{_between(column, middle)}{some}"


def _between(column: Column, middle: Middle) -> str:
    low, high = column.show(middle.low), column.show(middle.high)
    spread = "" if low == high else f" ({low}–{high})"
    return f"{column.show(middle.value)}{spread}"


def _level(
    sweep: Sweep, name: str, middle: Middle, column: Column, scale: int, look: Look
) -> Drawing:
    """A strategy without the option, as a horizontal line."""
    places = list(_places(sweep).values())
    return {
        "type": "scatter",
        "mode": "lines",
        "name": escape(name),
        "x": places,
        "y": [scale * middle.value] * len(places),
        "line": {"color": look.colour, "dash": "dash", "width": 1.5},
        "text": [_between(column, middle)] * len(places),
        "hovertemplate": "%{text}",
    }
