"""The content of the charts of measures: gradient norms, distances of replicas, staleness."""

from manyhands.reports.comparison.chart_content import ChartLine, LineChart
from manyhands.reports.comparison.columns import MEASURES, metric_title
from manyhands.reports.comparison.results import Curve
from manyhands.reports.comparison.standings import Field, Standing
from manyhands.reports.comparison.statistics import middle


def measure_contents(field: Field) -> list[LineChart]:
    """A chart of every measure that any run of the field has."""
    runs = [run for standing in field.finished for run in standing.runs]
    named = dict.fromkeys(name for run in runs for name in run.measures)
    return [_content(field, name) for name in named]


def _content(field: Field, name: str) -> LineChart:
    title, explanation = MEASURES.get(name, (metric_title(name), ""))
    measured = [s for s in field.finished if any(name in run.measures for run in s.runs)]
    return LineChart(
        name=f"measure-{name}",
        title=f"{title} over samples",
        explanation=f"{explanation} Since the evaluation before; bars over the repeats.",
        x_title="samples, all workers together",
        y_title=title,
        lines=tuple(_line(standing, name) for standing in measured),
        is_from_zero=True,
    )


def _line(standing: Standing, name: str) -> ChartLine:
    """The median of the repeats at each number of samples, with its interval."""
    values: dict[int, list[float]] = {}
    for run in standing.runs:
        curve = run.measures.get(name, Curve())
        for samples, value in zip(curve.samples, curve.value, strict=True):
            if value is not None:
                values.setdefault(samples, []).append(value)
    found = [(samples, at) for samples, each in sorted(values.items()) if (at := middle(each))]
    return ChartLine(
        strategy=standing.strategy,
        x=tuple(samples for samples, _ in found),
        y=tuple(at.value for _, at in found),
        low=tuple(at.low for _, at in found),
        high=tuple(at.high for _, at in found),
    )
