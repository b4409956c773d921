"""The content of a sweep's charts for publication: every figure over the values of the option."""

from typing import Final

from manyhands.reports.comparison.chart_content import ChartLine, LineChart
from manyhands.reports.comparison.columns import Column
from manyhands.reports.comparison.sweeps import Sweep, position

WIDE_RANGE: Final = 20
"""From this ratio of the largest value to the smallest on, the axis is logarithmic."""


def sweep_contents(sweep: Sweep) -> list[LineChart]:
    """A chart of every figure, with its intervals; strategies without the option are levels."""
    return [_content(sweep, column) for column in sweep.columns]


def _content(sweep: Sweep, column: Column) -> LineChart:
    places = _places(sweep)
    scale = 100 if column.unit == "%" else 1
    lines = []
    for curve in sweep.curves:
        found = [(p.value, m) for p in curve.points if (m := p.standing.middle(column))]
        lines.append(
            ChartLine(
                strategy=curve.name,
                x=tuple(places[str(value)] for value, _ in found),
                y=tuple(scale * middle.value for _, middle in found),
                low=tuple(scale * middle.low for _, middle in found),
                high=tuple(scale * middle.high for _, middle in found),
            )
        )
    for point in sweep.comparators:
        if middle := point.standing.middle(column):
            name = f"{point.standing.strategy}{point.field.conditions}"
            level = (scale * middle.value,) * len(places)
            lines.append(ChartLine(strategy=name, x=tuple(places.values()), y=level))
    title = column.title.removesuffix(" in the end")
    unit = "" if column.unit in {"no unit", "of 1"} else f", {column.unit}"
    at = [*places.values()]
    return LineChart(
        name=f"sweep-{sweep.option}-{column.name}",
        title=f"{title} over {sweep.option}",
        explanation=column.explanation,
        x_title=sweep.option,
        y_title=f"{title}{unit}",
        lines=tuple(lines),
        ticks={place: value for value, place in places.items()},
        is_log=min(at) > 0 and max(at) >= WIDE_RANGE * min(at),
    )


def _places(sweep: Sweep) -> dict[str, float]:
    """Where every value is on the axis: by its size, or in order if one has no size."""
    found = {str(value): position(sweep.option, value) for value in sweep.values}
    if any(place is None for place in found.values()):
        return {value: float(number) for number, value in enumerate(found)}
    return {value: place for value, place in found.items() if place is not None}
