"""Figures of a run, each a pure function of its trace.

`seconds` are seconds of training: they count from the first batch of any worker.
`speed` has the figures of time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from manyhands.reports.figures.speed import per, trained_here, training_seconds
from manyhands.trace import SCOPES, Flow, Phase, Point, Scope, Totals, Trace, flow_key

VALIDATION: Final = "validation/"
"""What the names of validation metrics begin with."""

_LOWER: Final = frozenset(("loss", "error", "perplexity", "mse", "rmse", "mae"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that all processes sent and received (docs/meanings.md, Bytes)."""

    sent: int
    """Wire bytes, in all phases, between hosts and within them."""
    received: int
    sent_per_sample: float
    measured: bool
    """False if no process counted any peer, which is not the same as having sent nothing."""
    flows: Mapping[str, Flow]
    """Payload and wire bytes by phase and scope, as in `training/between`; empty in traces of
    earlier versions."""
    of_workers: Mapping[str, Flow]
    """The part of `flows` that the workers' processes counted, with their peer servers."""

    def flow(self, phase: Phase, scope: Scope | None = None) -> Flow:
        """The bytes of a phase, in one scope or in both."""
        scopes = SCOPES if scope is None else (scope,)
        return sum((self.flows.get(flow_key(phase, one), Flow()) for one in scopes), Flow())

    def workers_flow(self, phase: Phase) -> Flow:
        """The bytes of a phase that the workers' processes sent and received."""
        return sum((self.of_workers.get(flow_key(phase, one), Flow()) for one in SCOPES), Flow())


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The distribution of the staleness of applied updates."""

    updates: int
    mean: float
    p99: int
    """The smallest staleness that at least 99 % of the updates do not exceed."""
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPoint:
    """The training loss around one moment, averaged over all workers' samples."""

    seconds: float
    samples: int
    """Samples that all workers had trained on by then."""
    value: float | None
    """None if one of the values was not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCurve:
    """A validation metric over the run; values that were not finite are None."""

    name: str
    last: float | None
    best: float | None
    best_seconds: float | None
    """When the best value was first reached."""


def traffic(trace: Trace) -> Traffic:
    """Bytes sent and received, by all processes together."""
    totals = [process.totals for process in trace.processes]
    sent = sum(sum(each.sent.values()) for each in totals)
    return Traffic(
        sent=sent,
        received=sum(sum(each.received.values()) for each in totals),
        sent_per_sample=per(sent, trained_here(trace)),
        measured=any(each.sent or each.received for each in totals),
        flows=_flows(totals),
        of_workers=_flows([worker.totals for worker in trace.workers]),
    )


def staleness(trace: Trace) -> Spread | None:
    """The staleness of all applied updates; None in a run that applies none that are stale."""
    return _spread(process.staleness for process in trace.processes)


def staleness_counts(trace: Trace) -> dict[int, int]:
    """How many of the applied updates were how many versions old, in order of age."""
    return dict(sorted(_summed(process.staleness for process in trace.processes).items()))


def staleness_by_process(trace: Trace) -> dict[str, Spread]:
    """The staleness of each process's updates, of those that recorded any."""
    names = dict.fromkeys(process.name for process in trace.processes)
    spreads = {
        name: _spread(process.staleness for process in trace.processes if process.name == name)
        for name in names
    }
    return {name: spread for name, spread in spreads.items() if spread is not None}


def staleness_by_sender(trace: Trace) -> dict[str, Spread]:
    """The staleness of each worker's updates, whichever server applied them, where it is known."""
    names = sorted({name for process in trace.processes for name in process.staleness_by_sender})
    spreads = {
        name: _spread(process.staleness_by_sender.get(name, {}) for process in trace.processes)
        for name in names
    }
    return {name: spread for name, spread in spreads.items() if spread is not None}


def loss_curve(trace: Trace, points: int = 100) -> tuple[LossPoint, ...]:
    """The training loss over time in at most about `points` values.

    Each averages as many of the workers' values, neighbours in time, weighted by their samples.
    """
    if points < 1:
        raise ValueError(f"points is {points}: ask for at least 1")
    origin, _ = training_seconds(trace)
    written = sorted(
        (
            (point.at, worker.name, worker.life, point)
            for worker in trace.workers
            for point in worker.points
            if point.name == "loss"
        ),
        key=lambda entry: entry[:3],
    )
    writers = len({name for _, name, _, _ in written})
    # Whole rounds of the workers, so that no value rests on some of them only.
    size = max(1, writers) * -(-len(written) // (max(1, writers) * points))
    reached: dict[tuple[str, int], int] = {}
    curve = []
    for first in range(0, len(written), size or 1):
        group = written[first : first + size]
        for _, name, life, point in group:
            reached[name, life] = point.samples
        curve.append(
            LossPoint(
                seconds=group[-1][0] - origin,
                samples=sum(reached.values()),
                value=_mean([point for *_, point in group]),
            )
        )
    return tuple(curve)


def validation_series(trace: Trace) -> dict[str, list[Point]]:
    """What was written of each validation metric, by its name and in order of time."""
    series: dict[str, list[Point]] = {}
    for process in trace.processes:
        for point in process.points:
            if point.name.startswith(VALIDATION):
                series.setdefault(point.name.removeprefix(VALIDATION), []).append(point)
    return {name: sorted(series[name], key=lambda point: point.at) for name in sorted(series)}


def validation(trace: Trace) -> dict[str, MetricCurve]:
    """The validation metrics by name (`accuracy`, not `validation/accuracy`), last and best."""
    origin, _ = training_seconds(trace)
    metrics = {}
    for name, series in validation_series(trace).items():
        finite = [(point.value, point.at) for point in series if point.value is not None]
        sign = 1 if lower_is_better(name) else -1
        best = min(finite, key=lambda entry: (sign * entry[0], entry[1]), default=None)
        metrics[name] = MetricCurve(
            name=name,
            last=series[-1].value,
            best=best and best[0],
            best_seconds=best and best[1] - origin,
        )
    return metrics


def time_to(trace: Trace, name: str, target: float) -> float | None:
    """Seconds of training until a validation metric first reached the target; None if never."""
    series = validation_series(trace)
    if name not in series:
        known = ", ".join(series) or "none"
        raise KeyError(f"no validation metric {name!r} in this run; there is: {known}")
    origin, _ = training_seconds(trace)
    for point in series[name]:
        if point.value is None:
            continue
        if point.value <= target if lower_is_better(name) else point.value >= target:
            return point.at - origin
    return None


def lower_is_better(name: str) -> bool:
    """Whether a metric of that name is better when lower: losses, errors, perplexity.

    >>> lower_is_better("loss"), lower_is_better("top5_error"), lower_is_better("accuracy")
    (True, True, False)
    """
    return not _LOWER.isdisjoint(name.lower().replace("/", "_").replace("-", "_").split("_"))


def _flows(totals: Iterable[Totals]) -> dict[str, Flow]:
    flows: dict[str, Flow] = {}
    for each in totals:
        for kind, flow in each.traffic.items():
            flows[kind] = flows.get(kind, Flow()) + flow
    return flows


def _spread(histograms: Iterable[Mapping[int, int]]) -> Spread | None:
    counts = _summed(histograms)
    updates = sum(counts.values())
    if not updates:
        return None
    p99, within = 0, 0
    for value in sorted(counts):
        p99, within = value, within + counts[value]
        if within * 100 >= updates * 99:
            break
    return Spread(
        updates=updates,
        mean=sum(value * count for value, count in counts.items()) / updates,
        p99=p99,
        most=max(counts),
    )


def _summed(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for histogram in histograms:
        for value, count in histogram.items():
            counts[value] = counts.get(value, 0) + count
    return counts


def _mean(points: list[Point]) -> float | None:
    total = weights = 0.0
    for point in points:
        if point.value is None:
            return None
        total += point.value * point.weight
        weights += point.weight
    return total / weights if weights else None
