"""Columns of a comparison: each figure of a run, with its unit and a line that explains it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from manyhands.reports import formatting
from manyhands.reports.comparison.results import RunResult
from manyhands.reports.figures.trace_figures import lower_is_better


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """Reference figures for comparisons, by repeat."""

    alone: Mapping[int, float]
    """Samples per second of one worker."""
    budget: Mapping[int, float]
    """Seconds of training."""
    metric: str | None
    """The validation metric by which strategies are ranked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A figure of a run."""

    name: str
    title: str
    unit: str
    explanation: str
    section: str
    of: Callable[[RunResult, Yardstick], float | None]
    show: Callable[[float], str]
    """Formats a value without its unit, which is in the column's heading."""
    better: Literal["higher", "lower", ""] = ""
    full: float | None = None
    """The value of a bar of full length; None: the largest of the compared values."""


SECTIONS: Final = {
    "speed": "Speed",
    "learning": "Learning",
    "time": "Where the time went",
    "traffic": "Traffic",
    "staleness": "Staleness",
    "samples": "Samples",
    "cost": "Cost",
}

MEASURES: Final = {
    "gradient_norm": ("Gradient norm", "Mean norm of gradients before clipping."),
    "spread": ("Spread", "Mean distance of the workers' replicas to their mean."),
    "spread_most": ("Largest spread", "Largest distance between two replicas."),
    "staleness": ("Staleness", "Mean staleness of applied updates, in versions."),
}
"""Titles and explanations of what runs measure beside metrics."""

PART_TITLES: Final = {
    "compute": "Computing",
    "wait": "Waiting",
    "communication": "Communicating",
    "coding": "Encoding and decoding",
    "data": "Loading data",
    "evaluation": "Evaluating",
    "other": "Other",
}
_PART_EXPLANATIONS: Final = {
    "compute": "Forward, backward and optimizer.",
    "wait": "Waiting for another worker.",
    "communication": "Transfers of updates and parameters, not overlapped with other work.",
    "coding": "Codecs: encoding what is sent and decoding what is received.",
    "data": "Waiting for the next batch.",
    "evaluation": "Metrics on the validation data.",
    "other": "Time that was not recorded otherwise.",
}


def columns(
    metrics: list[str], metric: str | None, budget: str, target: str, currency: str
) -> list[Column]:
    """All figures, for runs with these validation metrics; the budget and the target in words."""
    return [
        *_SPEED,
        Column(
            name="time_to_target",
            title="Time to target",
            unit="s",
            explanation=f"Seconds of training until {target or 'the target'} was first measured.",
            section="learning",
            of=lambda run, _: run.time_to_target,
            show=_seconds,
            better="lower",
        ),
        *(_final(name) for name in metrics),
        *([_within(metric, budget)] if metric else []),
        *(_measure(name) for name in MEASURES),
        *(_share(part) for part in PART_TITLES),
        *_REST,
        _cost(currency),
    ]


def metric_title(name: str) -> str:
    """A metric as a heading.

    >>> metric_title("accuracy"), metric_title("f1")
    ('Accuracy', 'F1')
    """
    return name.replace("_", " ").capitalize()


def is_share(metric: str) -> bool:
    """Whether a metric is a share of samples, and shown in per cent."""
    return "accuracy" in metric.lower()


def metric_value(name: str, value: float) -> str:
    """A metric's value with its unit, where it has one.

    >>> metric_value("accuracy", 0.9765), metric_value("loss", 0.0704)
    ('97.65 %', '0.0704')
    """
    return f"{100 * value:.2f} %" if is_share(name) else formatting.value(value)


def metric_at(run: RunResult, name: str, seconds: float | None = None) -> float | None:
    """A validation metric in the end, or as last evaluated by then; None if it was not."""
    curve = run.validation.get(name)
    if curve is None or not curve.value:
        return None
    if seconds is None:
        return curve.value[-1]
    # The clock resolves nanoseconds.
    points = zip(curve.seconds, curve.value, strict=True)
    until = [value for at, value in points if at <= seconds + 1e-9]
    return until[-1] if until else None


def _final(name: str) -> Column:
    return Column(
        name=f"final_{name}",
        title=f"{metric_title(name)} in the end",
        unit=_metric_unit(name),
        explanation="On the validation data, as last evaluated.",
        section="learning",
        of=lambda run, _: metric_at(run, name),
        show=_metric_number(name),
        better="lower" if lower_is_better(name) else "higher",
        full=1.0 if is_share(name) else None,
    )


def _within(name: str, budget: str) -> Column:
    return Column(
        name="within",
        title=f"{metric_title(name)} within the budget",
        unit=_metric_unit(name),
        explanation=f"As last evaluated within {budget}.",
        section="learning",
        of=lambda run, yardstick: (
            metric_at(run, name, yardstick.budget[run.repeat])
            if run.repeat in yardstick.budget
            else None
        ),
        show=_metric_number(name),
        better="lower" if lower_is_better(name) else "higher",
        full=1.0 if is_share(name) else None,
    )


def _measure(name: str) -> Column:
    title, explanation = MEASURES[name]

    def last(run: RunResult, _: Yardstick) -> float | None:
        curve = run.measures.get(name)
        return curve.value[-1] if curve and curve.value else None

    return Column(
        name=f"measure_{name}",
        title=f"{title} in the end",
        unit="versions" if name == "staleness" else "no unit",
        explanation=f"{explanation} Since the evaluation before the last.",
        section="staleness" if name == "staleness" else "learning",
        of=last,
        show=formatting.value,
    )


def _cost(currency: str) -> Column:
    return Column(
        name="cost",
        title="Cost",
        unit=currency or "as the price",
        explanation="Price of a worker's hour × workers × hours, start-up included.",
        section="cost",
        of=lambda run, _: run.cost,
        show=lambda value: f"{value:,.4g}",
        better="lower",
    )


def _share(part: str) -> Column:
    return Column(
        name=part,
        title=PART_TITLES[part],
        unit="%",
        explanation=_PART_EXPLANATIONS[part],
        section="time",
        of=lambda run, _: run.shares.get(part),
        show=lambda share: f"{100 * share:.1f}",
        full=1.0,
    )


def _metric_unit(name: str) -> str:
    if is_share(name):
        return "%"
    return "of 1" if name.startswith("f1") else "no unit"


def _metric_number(name: str) -> Callable[[float], str]:
    return (lambda value: f"{100 * value:.2f}") if is_share(name) else formatting.value


def _seconds(value: float) -> str:
    return formatting.duration(value).removesuffix(" s")


def _speedup(run: RunResult, yardstick: Yardstick) -> float | None:
    alone = yardstick.alone.get(run.repeat)
    return run.rate / alone if alone else None


def _efficiency(run: RunResult, yardstick: Yardstick) -> float | None:
    speedup = _speedup(run, yardstick)
    return None if speedup is None else speedup / run.workers


def _staleness(figure: str) -> Callable[[RunResult, Yardstick], float | None]:
    return lambda run, _: None if run.staleness is None else getattr(run.staleness, figure)


_SPEED: Final = (
    Column(
        name="rate",
        title="Throughput",
        unit="samples/s",
        explanation="Samples per second of training, of all workers together, with evaluations.",
        section="speed",
        of=lambda run, _: run.rate,
        show=formatting.count,
        better="higher",
    ),
    Column(
        name="speedup",
        title="Speedup",
        unit="×",
        explanation="Throughput over that of one worker alone, in the same repeat.",
        section="speed",
        of=_speedup,
        show=lambda value: f"{value:.2f}",
        better="higher",
    ),
    Column(
        name="efficiency",
        title="Scaling efficiency",
        unit="%",
        explanation="Speedup over the number of workers; 100 %: each is as fast as one alone.",
        section="speed",
        of=_efficiency,
        show=lambda value: f"{100 * value:.0f}",
        better="higher",
        full=1.0,
    ),
    Column(
        name="seconds",
        title="Training",
        unit="s",
        explanation="From the first worker's first batch until the last worker is done.",
        section="speed",
        of=lambda run, _: run.seconds,
        show=_seconds,
        better="lower",
    ),
    Column(
        name="first_epoch",
        title="First epoch",
        unit="s",
        explanation="How long the first pass over the data took, without evaluations.",
        section="speed",
        of=lambda run, _: run.first_epoch,
        show=_seconds,
        better="lower",
    ),
    Column(
        name="later_epoch",
        title="Each later epoch",
        unit="s",
        explanation="How long each further pass took on average, without evaluations.",
        section="speed",
        of=lambda run, _: run.later_epoch,
        show=_seconds,
        better="lower",
    ),
    Column(
        name="each_evaluation",
        title="Each evaluation",
        unit="s",
        explanation="From the first worker's start to the last one's end, on average.",
        section="speed",
        of=lambda run, _: run.evaluation,
        show=_seconds,
        better="lower",
    ),
    Column(
        name="start_up",
        title="Start-up",
        unit="s",
        explanation="Until the first worker's first batch; in no other figure but the cost.",
        section="speed",
        of=lambda run, _: run.start_up,
        show=_seconds,
        better="lower",
    ),
)


def _payload_per_sample(run: RunResult, _: Yardstick) -> float | None:
    training = run.traffic.get("training")
    if training is None or not run.samples:
        return None
    return (training.payload_between + training.payload_within) / run.samples


def _between_per_sample(run: RunResult, _: Yardstick) -> float | None:
    """Nothing for a run on one host, where no phase has traffic between hosts."""
    training = run.traffic.get("training")
    if training is None or not run.samples:
        return None
    several = any(phase.wire_between for phase in run.traffic.values())
    return training.wire_between / run.samples if several else None


_REST: Final = (
    Column(
        name="sent_per_sample",
        title="Sent per sample",
        unit="bytes",
        explanation="Wire bytes that all processes sent, at any time, divided by the samples.",
        section="traffic",
        of=lambda run, _: run.sent_per_sample,
        show=formatting.size,
        better="lower",
    ),
    Column(
        name="payload_per_sample",
        title="Payload per sample",
        unit="bytes",
        explanation="Bytes of tensors that all processes sent in training, per sample.",
        section="traffic",
        of=_payload_per_sample,
        show=formatting.size,
        better="lower",
    ),
    Column(
        name="between_per_sample",
        title="Between hosts per sample",
        unit="bytes",
        explanation="Wire bytes of training that went from one host to another, per sample.",
        section="traffic",
        of=_between_per_sample,
        show=formatting.size,
        better="lower",
    ),
    Column(
        name="staleness_mean",
        title="Mean staleness",
        unit="versions",
        explanation="Updates of other workers between a worker's read and its own update.",
        section="staleness",
        of=_staleness("mean"),
        show=lambda value: f"{value:.2f}",
        better="lower",
    ),
    Column(
        name="staleness_p99",
        title="99 % of updates within",
        unit="versions",
        explanation="The 99th percentile of the staleness of applied updates.",
        section="staleness",
        of=_staleness("p99"),
        show=formatting.count,
        better="lower",
    ),
    Column(
        name="repeated",
        title="Repeated",
        unit="samples",
        explanation="Leased again because their first worker was lost.",
        section="samples",
        of=lambda run, _: run.repeated,
        show=formatting.count,
        better="lower",
    ),
    Column(
        name="lost",
        title="Lost",
        unit="samples",
        explanation="Samples of the budget that were never trained on.",
        section="samples",
        of=lambda run, _: run.lost,
        show=formatting.count,
        better="lower",
    ),
)
