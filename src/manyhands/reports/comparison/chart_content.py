"""The content of a comparison's charts: the numbers, apart from what draws them.

The HTML page (`manyhands.reports.page.charts`, by Plotly) and the files for publication
(`manyhands.reports.publication.drawing`, by matplotlib) draw the same content. A further chart is a
function here that returns one of the four kinds, named in `charts_of`.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from manyhands.reports.comparison.columns import PART_TITLES, is_share, metric_title
from manyhands.reports.comparison.results import Curve
from manyhands.reports.comparison.standings import Field
from manyhands.reports.comparison.statistics import middle
from manyhands.reports.comparison.verdict import per_thousand
from manyhands.reports.formatting import duration, size


@dataclass(frozen=True, slots=True, kw_only=True)
class _Titled:
    """What every chart has."""

    name: str
    """The name of its file."""
    title: str
    explanation: str
    x_title: str
    """With its unit."""
    y_title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """A line of a strategy: one repeat, or the median over repeats."""

    strategy: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    """None where it was not finite."""
    repeat: int | None = None
    """The repeat that it shows; None: the median, or figures over repeats."""
    is_beside: bool = False
    """Whether it stands beside a median, which is then the one to look at."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    """The ends of the intervals of `y`; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart(_Titled):
    """Values over time, samples or numbers."""

    lines: tuple[ChartLine, ...]
    ticks: Mapping[float, str] = dataclasses.field(default_factory=dict)
    """The only marks of the x axis and their labels; empty: marks at round numbers from 0 on."""
    is_log: bool = False
    """Whether the x axis is logarithmic."""
    is_from_zero: bool = False
    """Whether the y axis begins at 0."""
    has_ideal: bool = False
    """Whether the line y = x is drawn for comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsChart(_Titled):
    """A bar for every strategy, divided into parts of the time."""

    strategies: tuple[str, ...]
    parts: Mapping[str, tuple[float, ...]]
    """The lengths of a part, one for every strategy, by the part's name."""

    def shares(self, part: str) -> tuple[float, ...]:
        """The shares of a part in the whole bars, one for every strategy."""
        totals = [sum(lengths) or 1 for lengths in zip(*self.parts.values(), strict=True)]
        return tuple(length / total for length, total in zip(self.parts[part], totals, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart(_Titled):
    """A bar for every strategy, with its value in words."""

    strategies: tuple[str, ...]
    values: tuple[float, ...]
    texts: tuple[str, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    """The ends of the intervals of `values`; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramChart(_Titled):
    """How often whole numbers occurred, in per cent, by strategy."""

    shares: Mapping[str, tuple[float, ...]]
    """By strategy: the shares of 0, 1, 2 and so on."""


ChartContent: TypeAlias = LineChart | PartsChart | BarChart | HistogramChart


def charts_of(fields: tuple[Field, ...]) -> list[ChartContent]:
    """The charts of runs of one kind; those of one field show the first, with most workers."""
    field = fields[0]
    found = [
        _learning(field, "seconds"),
        _learning(field, "samples"),
        _loss(field),
        _time(field),
        _time_to_target(field),
        _scaling(fields),
        _staleness(field),
        _traffic(field),
    ]
    return [chart for chart in found if chart is not None]


def _learning(field: Field, over: str) -> LineChart | None:
    metric = field.metric
    if metric is None:
        return None
    title = metric_title(metric)
    scale = 100 if is_share(metric) else 1
    lines: list[ChartLine] = []
    for standing in field.finished:
        curves = {run.repeat: run.validation.get(metric, Curve()) for run in standing.runs}
        central = _median_curve([*curves.values()])
        lines += _lines(standing.strategy, curves, central, over, scale)
    return LineChart(
        name=f"{metric}-{over}",
        title=f"{title} over {'time' if over == 'seconds' else 'samples'}",
        explanation=(
            "Every evaluation on the validation data; thick is the median of the repeats, thin are "
            "the repeats."
            if over == "seconds"
            else "The same evaluations: what a sample taught, however long it took."
        ),
        x_title="seconds of training" if over == "seconds" else "samples, all workers together",
        y_title=f"{title}, %" if scale == 100 else title,
        lines=tuple(lines),
    )


def _loss(field: Field) -> LineChart | None:
    lines: list[ChartLine] = []
    for standing in field.finished:
        curves = {run.repeat: run.loss for run in standing.runs if run.loss.value}
        # Losses are recorded now and then; a median is one of repeats at the same samples.
        aligned = len({curve.samples for curve in curves.values()}) == 1
        central = _median_curve([*curves.values()]) if aligned else None
        lines += _lines(standing.strategy, curves, central, "seconds", 1)
    if not lines:
        return None
    return LineChart(
        name="training-loss",
        title="Training loss over time",
        explanation="The mean over the samples of all workers, as they trained on them.",
        x_title="seconds of training",
        y_title="training loss",
        lines=tuple(lines),
    )


def _lines(
    strategy: str, curves: Mapping[int, Curve], central: Curve | None, over: str, scale: int
) -> list[ChartLine]:
    """A line for every repeat and, if there is one, one for their median."""
    lines = [
        ChartLine(
            strategy=strategy,
            x=getattr(curve, over),
            y=_scaled(curve, scale),
            repeat=repeat,
            is_beside=central is not None,
        )
        for repeat, curve in curves.items()
    ]
    if central is not None:
        lines.append(
            ChartLine(strategy=strategy, x=getattr(central, over), y=_scaled(central, scale))
        )
    return lines


def _time(field: Field) -> PartsChart:
    spent = [per_thousand(standing) for standing in field.finished]
    return PartsChart(
        name="time",
        title="Where the time went",
        explanation=(
            "Seconds per 1,000 samples, divided by what the workers did in them on average; "
            "shorter is faster. Per cent of the time of training."
        ),
        x_title="seconds per 1,000 samples",
        strategies=tuple(standing.strategy for standing in field.finished),
        parts={
            part: tuple(each[part] for each in spent)
            for part in PART_TITLES
            if part != "coding" or any(each[part] for each in spent)
        },
    )


def _time_to_target(field: Field) -> BarChart | None:
    column = field.column("time_to_target")
    if column is None:
        return None
    found = [
        (standing.strategy, reached)
        for standing in field.finished
        if (reached := standing.middle(column))
    ]
    target = field.comparison.target or "target"
    return BarChart(
        name="time-to-target",
        title="Time to target",
        explanation=(
            f"Seconds of training until {target} was first measured: the median of the repeats and "
            "its interval. Strategies that did not reach it have no bar."
        ),
        x_title=f"seconds until {target}",
        strategies=tuple(strategy for strategy, _ in found),
        values=tuple(reached.value for _, reached in found),
        texts=tuple(duration(reached.value) for _, reached in found),
        low=tuple(reached.low for _, reached in found),
        high=tuple(reached.high for _, reached in found),
    )


def _scaling(fields: tuple[Field, ...]) -> LineChart | None:
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
    lines = []
    for strategy, of_strategy in points.items():
        workers, value, low, high = zip(*of_strategy, strict=True)
        lines.append(ChartLine(strategy=strategy, x=workers, y=value, low=low, high=high))
    return LineChart(
        name="scaling",
        title="Scaling",
        explanation=(
            "Throughput over that of one worker; dotted is as many times as there are workers."
            if name == "speedup"
            else "Throughput by the number of workers."
        ),
        x_title="workers",
        y_title={"speedup": "speedup, ×", "rate": "samples/s"}[name],
        lines=tuple(lines),
        ticks={workers: str(workers) for workers in sizes},
        is_log=True,
        is_from_zero=True,
        has_ideal=name == "speedup",
    )


def _staleness(field: Field) -> HistogramChart | None:
    shares: dict[str, tuple[float, ...]] = {}
    for standing in field.finished:
        found = [run.staleness for run in standing.runs if run.staleness]
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
        shares[standing.strategy] = tuple(
            100 * together.get(versions, 0) / updates for versions in shown
        )
    if not shares:
        return None
    return HistogramChart(
        name="staleness",
        title="Staleness",
        explanation=(
            "Updates of other workers between a worker's read and its own update; "
            "lockstep strategies have none."
        ),
        x_title="versions",
        y_title="updates, %",
        shares=shares,
    )


def _traffic(field: Field) -> BarChart | None:
    column = field.column("sent_per_sample")
    if column is None:
        return None
    found = [
        (standing.strategy, sent.value)
        for standing in field.finished
        if (sent := standing.middle(column))
    ]
    return BarChart(
        name="traffic",
        title="Bytes sent per sample",
        explanation=(
            "Wire bytes that all processes sent, between hosts and within them, where payloads are "
            "handed over in shared memory. Strategies that keep one copy of the parameters for all "
            "send none."
        ),
        x_title="kB per sample",
        strategies=tuple(strategy for strategy, _ in found),
        values=tuple(amount / 1000 for _, amount in found),
        texts=tuple(size(amount) for _, amount in found),
    )


def _scaled(curve: Curve, scale: int) -> tuple[float | None, ...]:
    return tuple(None if value is None else scale * value for value in curve.value)


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
