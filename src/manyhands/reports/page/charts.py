"""The charts of a page, as Plotly reads them: plain values, which the browser draws."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from manyhands.reports.comparison.chart_content import (
    BarChart,
    ChartContent,
    ChartLine,
    HistogramChart,
    LineChart,
    PartsChart,
    charts_of,
)
from manyhands.reports.comparison.columns import PART_TITLES
from manyhands.reports.comparison.measure_content import measure_contents
from manyhands.reports.comparison.standings import Field
from manyhands.reports.formatting import folded
from manyhands.reports.page.palette import PARTS, PATTERNS, Look

_INK: Final = "#24292f"
_FAINT: Final = "#57606a"
_GRID: Final = "#e4e8ec"
_MOST_POINTS: Final = 400
"""Of a curve; a longer one is thinned for the page."""
_MOST_MARKS: Final = 16
"""On a curve: more would hide it, and what lies beneath."""
_LABEL: Final = 24
"""Letters in a line of an axis' label: on a phone it leaves more than half of the chart."""
_ROW: Final = 38
"""Pixels of a bar with a label of two lines."""
_LABEL_LINE: Final = 17

Drawing = dict[str, Any]
"""What Plotly calls a figure: `data` and `layout`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing with its name and what it tells."""

    name: str
    title: str
    explanation: str
    drawing: Drawing
    wide: bool = False
    parts: tuple[str, ...] = ()
    """Of the time, where it tells them apart."""


def charts(fields: tuple[Field, ...], looks: Mapping[str, Look]) -> list[Chart]:
    """The charts of runs of one kind; the first of the fields, with most workers, is shown."""
    return [
        Chart(
            name=content.name,
            title=content.title,
            explanation=content.explanation,
            drawing=_drawing_of(content, looks),
            wide=isinstance(content, PartsChart),
            parts=tuple(content.parts) if isinstance(content, PartsChart) else (),
        )
        for content in (*charts_of(fields), *measure_contents(fields[0]))
    ]


def _drawing_of(content: ChartContent, looks: Mapping[str, Look]) -> Drawing:
    match content:
        case LineChart():
            return _line_chart(content, looks)
        case PartsChart():
            return _parts_chart(content)
        case BarChart():
            return _bar_chart(content, looks)
        case HistogramChart():
            return _histogram(content, looks)


def _line_chart(content: LineChart, looks: Mapping[str, Look]) -> Drawing:
    # Medians above repeats, and lines with gaps above whole ones: where two coincide, both show.
    lines = sorted(
        content.lines, key=lambda line: (not line.is_beside, -looks[line.strategy].cover)
    )
    data = [_line(line, looks[line.strategy]) for line in lines]
    if content.has_ideal:
        data.insert(
            0,
            {
                "type": "scatter",
                "mode": "lines",
                "x": list(content.ticks),
                "y": list(content.ticks),
                "name": "ideal",
                "line": {"color": _FAINT, "dash": "dot", "width": 1},
                "hoverinfo": "skip",
            },
        )
    xaxis: Drawing = {"title": {"text": content.x_title}}
    if content.ticks:
        xaxis |= {"tickvals": list(content.ticks), "ticktext": list(content.ticks.values())}
    else:
        xaxis["rangemode"] = "tozero"
    if content.is_log:
        xaxis["type"] = "log"
    yaxis: Drawing = {"title": {"text": content.y_title}}
    if content.is_from_zero:
        yaxis["rangemode"] = "tozero"
    return drawing(data, xaxis=xaxis, yaxis=yaxis)


def _line(line: ChartLine, look: Look) -> Drawing:
    every = 1 + len(line.x) // _MOST_POINTS
    drawn: Drawing = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escape(line.strategy),
        "meta": line.strategy,
        "x": list(line.x[::every]),
        "y": list(line.y[::every]),
        "line": _stroke(look, 2.5),
        "marker": {
            "color": look.colour,
            "symbol": look.symbol,
            "size": 8,
            "maxdisplayed": _MOST_MARKS,
        },
        "hovertemplate": "%{x:,.4~g}: %{y:.4~g}",
    }
    if line.repeat is not None:
        drawn |= {
            "opacity": 0.35 if line.is_beside else 1,
            "line": _stroke(look, 1),
            "mode": "lines" if line.is_beside and len(line.x) > 1 else "lines+markers",
            "hovertemplate": f"%{{x:,.4~g}}: %{{y:.4~g}} (repeat {line.repeat})",
        }
    if line.high:
        drawn["error_y"] = _error_bars([value or 0.0 for value in line.y], line.low, line.high)
    return drawn


def _parts_chart(content: PartsChart) -> Drawing:
    data = []
    for part, lengths in content.parts.items():
        shares = content.shares(part)
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": PART_TITLES[part],
                "y": [_name(strategy) for strategy in content.strategies],
                "x": list(lengths),
                "text": [f"{100 * share:.0f} %" if share >= 0.04 else "" for share in shares],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
                "textfont": {"color": _INK},
                "customdata": [100 * share for share in shares],
                "hovertemplate": "%{customdata:.1f} %, %{x:.3g} s per 1,000 samples",
                "marker": {
                    "color": PARTS[part],
                    "pattern": {
                        "shape": PATTERNS[part],
                        "bgcolor": PARTS[part],
                        "fgcolor": "rgba(0,0,0,.3)",
                        "size": 7,
                        "solidity": 0.1,
                    },
                    "line": {"color": "#fff", "width": 1},
                },
            }
        )
    return drawing(
        data,
        barmode="stack",
        # What does not fit into its part is left out.
        uniformtext={"mode": "hide", "minsize": 11},
        height=90 + _height(content.strategies),
        xaxis={"title": {"text": content.x_title}},
        yaxis={"autorange": "reversed", "automargin": True, "ticks": ""},
        bargap=0.25,
    )


def _bar_chart(content: BarChart, looks: Mapping[str, Look]) -> Drawing:
    most = max(content.values, default=0.0)
    bars: Drawing = {
        "type": "bar",
        "orientation": "h",
        "y": [_name(strategy) for strategy in content.strategies],
        "x": list(content.values),
        "text": list(content.texts),
        # What a short bar has no room for stands beside it.
        "textposition": [
            "inside" if value > 0.25 * most else "outside" for value in content.values
        ],
        "cliponaxis": False,
        "marker": {"color": [looks[strategy].colour for strategy in content.strategies]},
        "hovertemplate": "%{text}<extra></extra>",
    }
    if content.high:
        bars["error_x"] = _error_bars(content.values, content.low, content.high)
        bars["insidetextanchor"] = "start"
    return drawing(
        [bars],
        height=110 + _height(content.strategies),
        xaxis={"title": {"text": content.x_title}, "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "automargin": True, "ticks": ""},
        bargap=0.35,
    )


def _histogram(content: HistogramChart, looks: Mapping[str, Look]) -> Drawing:
    data = [
        {
            "type": "bar",
            "name": escape(strategy),
            "meta": strategy,
            "x": list(range(len(shares))),
            "y": list(shares),
            "marker": {"color": looks[strategy].colour},
            "hovertemplate": "%{x} versions: %{y:.1f} %",
        }
        for strategy, shares in content.shares.items()
    ]
    widest = max(map(len, content.shares.values()))
    return drawing(
        data,
        barmode="group",
        xaxis={"title": {"text": content.x_title}, "dtick": 1 if widest < 16 else None},
        yaxis={"title": {"text": content.y_title}},
    )


def _error_bars(values: Iterable[float], low: Iterable[float], high: Iterable[float]) -> Drawing:
    values = list(values)
    return {
        "type": "data",
        "symmetric": False,
        "array": [top - mid for top, mid in zip(high, values, strict=True)],
        "arrayminus": [mid - bottom for mid, bottom in zip(values, low, strict=True)],
        "thickness": 1,
        "width": 3,
    }


def drawing(data: Iterable[Drawing], **layout: Any) -> Drawing:
    """A figure in the page's style."""
    axes = {
        axis: {
            "gridcolor": _GRID,
            "zerolinecolor": _GRID,
            "linecolor": _FAINT,
            "ticks": "outside",
            "tickcolor": _GRID,
            "automargin": True,
            "fixedrange": True,
        }
        | layout.pop(axis, {})
        for axis in ("xaxis", "yaxis")
    }
    return {
        "data": list(data),
        "layout": {
            "height": 340,
            "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
            "paper_bgcolor": "#fff",
            "plot_bgcolor": "#fff",
            "font": {
                "family": 'system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif',
                "size": 13,
                "color": _INK,
            },
            "showlegend": False,
            "hovermode": "closest",
            **axes,
            **layout,
        },
    }


def _stroke(look: Look, width: float) -> Drawing:
    return {"color": look.colour, "dash": look.dash or "solid", "width": width}


def _name(strategy: str) -> str:
    """A strategy as a label of an axis, in several lines where it is long."""
    # Plotly would leave spaces at the beginning of a line out.
    return "<br>".join(escape(line.strip()) for line in folded(strategy, _LABEL))


def _height(strategies: Sequence[str]) -> int:
    """Pixels of the bars: all have as much as the one with the longest label needs."""
    lines = max((len(folded(strategy, _LABEL)) for strategy in strategies), default=1)
    return max(_ROW, 4 + _LABEL_LINE * lines) * len(strategies)
