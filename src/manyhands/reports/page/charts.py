"""The charts of a page, as Plotly reads them: plain values, which the browser draws."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from manyhands.reports.comparison.columns import PART_TITLES, is_share, metric_title
from manyhands.reports.comparison.results import Curve
from manyhands.reports.comparison.standings import Field, Standing
from manyhands.reports.comparison.statistics import middle
from manyhands.reports.comparison.verdict import per_thousand
from manyhands.reports.formatting import size
from manyhands.reports.page.palette import PARTS, PATTERNS, Look

_INK: Final = "#24292f"
_FAINT: Final = "#57606a"
_GRID: Final = "#e4e8ec"
_MOST_POINTS: Final = 400
"""Of a curve; a longer one is thinned for the page."""

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
    field = fields[0]
    found = [
        _learning(field, looks, "seconds"),
        _learning(field, looks, "samples"),
        _time(field),
        _scaling(fields, looks),
        _staleness(field, looks),
        _traffic(field, looks),
    ]
    return [chart for chart in found if chart is not None]


def _learning(field: Field, looks: Mapping[str, Look], over: str) -> Chart | None:
    if field.metric is None:
        return None
    title = metric_title(field.metric)
    scale = 100 if is_share(field.metric) else 1
    data: list[Drawing] = []
    for standing in field.finished:
        curves = [run.validation.get(field.metric, Curve()) for run in standing.runs]
        central = _median_curve(curves)
        for repeat, curve in zip((run.repeat for run in standing.runs), curves, strict=True):
            data.append(
                _line(standing, looks, getattr(curve, over), _scaled(curve, scale))
                | {
                    "opacity": 0.35 if central else 1,
                    "line": _stroke(looks[standing.strategy], 1),
                    "mode": "lines" if central and len(curve.value) > 1 else "lines+markers",
                    "hovertemplate": f"%{{x:,.4~g}}: %{{y:.4~g}} (repeat {repeat})",
                }
            )
        if central:
            data.append(_line(standing, looks, getattr(central, over), _scaled(central, scale)))
    unit = "seconds of training" if over == "seconds" else "samples, all workers together"
    return Chart(
        name=f"{field.metric}-{over}",
        title=f"{title} over {'time' if over == 'seconds' else 'samples'}",
        explanation=(
            "Every evaluation on the validation data; thick is the median of the repeats, thin are "
            "the repeats."
            if over == "seconds"
            else "The same evaluations: what a sample taught, however long it took."
        ),
        drawing=_drawing(
            data,
            xaxis={"title": {"text": unit}, "rangemode": "tozero"},
            yaxis={"title": {"text": f"{title}, %" if scale == 100 else title}},
        ),
    )


def _time(field: Field) -> Chart:
    standings = list(field.finished)
    spent = [per_thousand(standing) for standing in standings]
    data = []
    for part, title in PART_TITLES.items():
        shares = [each[part] / (sum(each.values()) or 1) for each in spent]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": title,
                "y": [_name(standing) for standing in standings],
                "x": [each[part] for each in spent],
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
    return Chart(
        name="time",
        title="Where the time went",
        explanation=(
            "Seconds per 1,000 samples, divided by what the workers did in them on average; "
            "shorter is faster. Per cent of the time of training."
        ),
        drawing=_drawing(
            data,
            barmode="stack",
            # What does not fit into its part is left out.
            uniformtext={"mode": "hide", "minsize": 11},
            height=90 + 38 * len(standings),
            xaxis={"title": {"text": "seconds per 1,000 samples"}},
            yaxis={"autorange": "reversed", "automargin": True, "ticks": ""},
            bargap=0.25,
        ),
        wide=True,
        parts=tuple(PARTS),
    )


def _scaling(fields: tuple[Field, ...], looks: Mapping[str, Look]) -> Chart | None:
    sizes = sorted({field.workers for field in fields})
    if len(sizes) < 2:
        return None
    name = "speedup" if any(field.column("speedup") for field in fields) else "rate"
    points: dict[str, list[tuple[int, float, float, float]]] = {}
    for field in sorted(fields, key=lambda field: field.workers):
        column = field.column(name)
        for standing in field.finished:
            found = column and standing.middle(column)
            if found and standing.workers == field.workers:
                points.setdefault(standing.strategy, []).append(
                    (field.workers, found.value, found.low, found.high)
                )
    data: list[Drawing] = []
    if name == "speedup":
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": sizes,
                "y": sizes,
                "name": "ideal",
                "line": {"color": _FAINT, "dash": "dot", "width": 1},
                "hoverinfo": "skip",
            }
        )
    for strategy, of_strategy in points.items():
        workers, value, low, high = zip(*of_strategy, strict=True)
        data.append(
            _trace(strategy, looks, workers, value)
            | {
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [top - mid for top, mid in zip(high, value, strict=True)],
                    "arrayminus": [mid - bottom for mid, bottom in zip(value, low, strict=True)],
                    "thickness": 1,
                    "width": 3,
                }
            }
        )
    title = {"speedup": "speedup, ×", "rate": "samples/s"}[name]
    return Chart(
        name="scaling",
        title="Scaling",
        explanation=(
            "Throughput over that of one worker; dotted is as many times as there are workers."
            if name == "speedup"
            else "Throughput by the number of workers."
        ),
        drawing=_drawing(
            data,
            xaxis={"title": {"text": "workers"}, "tickvals": sizes, "type": "log"},
            yaxis={"title": {"text": title}, "rangemode": "tozero"},
        ),
    )


def _staleness(field: Field, looks: Mapping[str, Look]) -> Chart | None:
    counted = {
        standing.strategy: [run.staleness for run in standing.runs if run.staleness]
        for standing in field.finished
    }
    if not any(counted.values()):
        return None
    data = []
    for strategy, found in counted.items():
        if not found:
            continue
        together: dict[int, int] = {}
        for each in found:
            for versions, updates in each.histogram.items():
                together[versions] = together.get(versions, 0) + updates
        updates = sum(together.values())
        # The tail beyond the 99th percentile is in the table; here it would flatten the rest.
        most = max(2 * max(each.p99 for each in found), 4)
        shown = range(min(most, max(together)) + 1)
        data.append(
            {
                "type": "bar",
                "name": escape(strategy),
                "meta": strategy,
                "x": list(shown),
                "y": [100 * together.get(versions, 0) / updates for versions in shown],
                "marker": {"color": looks[strategy].colour},
                "hovertemplate": "%{x} versions: %{y:.1f} %",
            }
        )
    return Chart(
        name="staleness",
        title="Staleness",
        explanation=(
            "Updates of other workers between a worker's read and its own update; "
            "lockstep strategies have none."
        ),
        drawing=_drawing(
            data,
            barmode="group",
            xaxis={"title": {"text": "versions"}, "dtick": 1 if _widest(data) < 16 else None},
            yaxis={"title": {"text": "updates, %"}},
        ),
    )


def _traffic(field: Field, looks: Mapping[str, Look]) -> Chart | None:
    column = field.column("sent_per_sample")
    if column is None:
        return None
    found = [
        (standing, middle_.value)
        for standing in field.finished
        if (middle_ := standing.middle(column))
    ]
    most = max((amount for _, amount in found), default=0.0)
    return Chart(
        name="traffic",
        title="Bytes sent per sample",
        explanation=(
            "What processes sent each other, within a host through shared memory where they can. "
            "Strategies that keep one copy of the parameters for all send none."
        ),
        drawing=_drawing(
            [
                {
                    "type": "bar",
                    "orientation": "h",
                    "y": [_name(standing) for standing, _ in found],
                    "x": [amount / 1000 for _, amount in found],
                    "text": [size(amount) for _, amount in found],
                    # What a short bar has no room for stands beside it.
                    "textposition": [
                        "inside" if amount > 0.25 * most else "outside" for _, amount in found
                    ],
                    "cliponaxis": False,
                    "marker": {"color": [looks[each.strategy].colour for each, _ in found]},
                    "hovertemplate": "%{text}<extra></extra>",
                }
            ],
            height=110 + 38 * len(found),
            xaxis={"title": {"text": "kB per sample"}, "rangemode": "tozero"},
            yaxis={"autorange": "reversed", "automargin": True, "ticks": ""},
            bargap=0.35,
        ),
    )


def _drawing(data: Iterable[Drawing], **layout: Any) -> Drawing:
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


def _line(
    standing: Standing, looks: Mapping[str, Look], x: Iterable[float], y: Iterable[float | None]
) -> Drawing:
    return _trace(standing.strategy, looks, x, y)


def _trace(
    strategy: str, looks: Mapping[str, Look], x: Iterable[float], y: Iterable[float | None]
) -> Drawing:
    look = looks[strategy]
    xs, ys = list(x), list(y)
    every = 1 + len(xs) // _MOST_POINTS
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escape(strategy),
        "meta": strategy,
        "x": xs[::every],
        "y": ys[::every],
        "line": _stroke(look, 2.5),
        "marker": {"color": look.colour, "symbol": look.symbol, "size": 8},
        "hovertemplate": "%{x:,.4~g}: %{y:.4~g}",
    }


def _stroke(look: Look, width: float) -> Drawing:
    return {"color": look.colour, "dash": look.dash or "solid", "width": width}


def _scaled(curve: Curve, scale: int) -> list[float | None]:
    return [None if value is None else scale * value for value in curve.value]


def _median_curve(curves: list[Curve]) -> Curve | None:
    """The median of each evaluation, where all repeats have as many and there are several."""
    if len(curves) < 2 or len({len(curve.value) for curve in curves}) > 1:
        return None

    def across(values: Iterable[float | None]) -> float | None:
        found = middle([value for value in values if value is not None])
        return found.value if found else None

    def each(name: str) -> list[float]:
        columns = zip(*(getattr(curve, name) for curve in curves), strict=True)
        return [across(column) or 0.0 for column in columns]

    return Curve(
        seconds=tuple(each("seconds")),
        samples=tuple(round(value) for value in each("samples")),
        value=tuple(
            across(column) for column in zip(*(curve.value for curve in curves), strict=True)
        ),
    )


def _widest(data: list[Drawing]) -> int:
    return max(len(each["x"]) for each in data)


def _name(standing: Standing) -> str:
    """As a label of an axis, in two lines where it is long."""
    text = escape(standing.strategy)
    if len(text) > 16 and "(" in text:
        text = text.replace("(", "<br>(", 1)
    return text
