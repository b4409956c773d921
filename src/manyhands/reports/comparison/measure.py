"""From a run's trace to its figures in `results.json`."""

import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from manyhands.cluster import Cluster
from manyhands.cluster.paid_hosts import paid_workers
from manyhands.reports.comparison.results import (
    PARTS,
    Curve,
    PhaseBytes,
    RunResult,
    StalenessSummary,
)
from manyhands.reports.figures.breakdown import breakdown, coding_seconds
from manyhands.reports.figures.measures import MeasurePoint, measured
from manyhands.reports.figures.outcome import ending, parameters_digest, settings
from manyhands.reports.figures.progress_curves import ProgressPoint, bytes_curve, throughput_curve
from manyhands.reports.figures.speed import accounting, throughput, training_seconds
from manyhands.reports.figures.trace_figures import (
    LossPoint,
    loss_curve,
    staleness,
    staleness_counts,
    traffic,
    validation_series,
)
from manyhands.trace import PHASES, Trace

_TARGET: Final = re.compile(r"\s*(\w+)\s*(>=|<=)\s*(\S+)\s*")


def measure(
    trace: Trace,
    *,
    strategy: str | None = None,
    workers: int | None = None,
    repeat: int = 0,
    seed: int | None = None,
    folder: str | None = None,
    target: str | None = None,
    price: float | None = None,
    swept: dict[str, int | float | str] | None = None,
    curve: str = "",
) -> RunResult:
    """The figures of one run.

    Args:
        trace: the run's.
        strategy: as text; by default what the trace says, as are workers, seed and target.
        workers: how many.
        repeat: which repeat of a comparison it belongs to.
        seed: the run's.
        folder: where the run is, relative to the comparison's; by default as it was read.
        target: as in "accuracy >= 0.98".
        price: of a worker for an hour.
        swept: the values of swept options.
        curve: the sweep of the strategy, as it was written.
    """
    told = {setting.name: setting.value for setting in settings(trace)}
    if workers is None:
        workers = int(told.get("workers") or len({w.header.rank for w in trace.workers}))
    if folder is None:
        folder = str(trace.folder or "")
    target = target or told.get("target")
    end, speed, kept = ending(trace), throughput(trace), accounting(trace)
    curves = _validation(trace)
    reached = _reached(curves, target)
    sent = _sent(trace)
    paid = _paid_workers(trace, told)
    hours = (speed.start_up + speed.seconds) / 3600
    return RunResult(
        strategy=strategy or told.get("strategy", "a run"),
        kind=trace.kind,
        workers=workers,
        repeat=repeat,
        seed=int(told.get("seed", "0")) if seed is None else seed,
        folder=folder,
        status="finished" if end.status == "finished" else "failed",
        words="" if end.status == "finished" else f"{end.status}: {end.words}".rstrip(": "),
        samples=speed.samples,
        seconds=speed.seconds,
        start_up=speed.start_up,
        rate=speed.rate,
        first_epoch=speed.first_epoch,
        later_epoch=speed.later_epoch,
        evaluation=speed.evaluation,
        validation=curves,
        measures=_measures(trace),
        loss=_curve(loss_curve(trace)),
        throughput=_curve(throughput_curve(trace)),
        bytes_sent=_curve(bytes_curve(trace)),
        time_to_target=reached and reached[0],
        samples_to_target=reached and reached[1],
        shares=_shares(trace),
        coding=_coding(trace),
        sent=sent,
        sent_per_sample=sent / speed.samples if sent is not None and speed.samples else None,
        traffic=_traffic(trace),
        staleness=_staleness(trace),
        seen=kept.seen,
        repeated=kept.repeated,
        lost=kept.lost,
        paid=paid,
        cost=None if price is None else price * paid * hours,
        swept=swept or {},
        curve=curve,
        threads=_threads(trace, told.get("threads")),
        parameters_sha256=parameters_digest(trace),
    )


def _paid_workers(trace: Trace, told: Mapping[str, str]) -> int:
    """The workers whose price is paid: those of all hosts with a worker or a server."""
    on = {one.header.rank: one.header.host for one in trace.workers}
    used = {
        *on.values(),
        *(one.header.host for one in trace.processes if one.header.role == "server"),
    }
    # Without a word on its hosts, they are taken to have no workers but those of the run.
    sizes = Counter(on.values())
    with contextlib.suppress(ValueError):
        if text := told.get("cluster"):
            cluster = Cluster.parse(text)
            declared = Counter(cluster.worker_hosts(cluster.default_workers()))
            sizes = declared if used <= {host.name for host in cluster.hosts} else sizes
    return paid_workers(sizes, used)


def failed(
    words: str,
    *,
    strategy: str,
    kind: Literal["live", "virtual"],
    workers: int,
    repeat: int,
    seed: int,
    folder: str,
    swept: dict[str, int | float | str] | None = None,
    curve: str = "",
) -> RunResult:
    """A run that left no trace to measure, and why."""
    return RunResult(
        strategy=strategy,
        kind=kind,
        workers=workers,
        repeat=repeat,
        seed=seed,
        folder=folder,
        status="failed",
        words=words,
        swept=swept or {},
        curve=curve,
    )


def read_target(text: str) -> tuple[str, str, float]:
    """A target's metric, its direction and its value.

    >>> read_target("accuracy >= 0.98")
    ('accuracy', '>=', 0.98)
    """
    # A job reads it the same, but stands in a file that needs torch.
    match = _TARGET.fullmatch(text)
    try:
        if match:
            return match[1], match[2], float(match[3])
    except ValueError:
        pass
    raise ValueError(f"target {text!r} is not of the form 'accuracy >= 0.98' or 'loss <= 0.1'")


def _validation(trace: Trace) -> dict[str, Curve]:
    origin, _ = training_seconds(trace)
    return {
        name: Curve(
            seconds=tuple(point.at - origin for point in points),
            samples=tuple(point.samples for point in points),
            value=tuple(point.value for point in points),
        )
        for name, points in validation_series(trace).items()
    }


def _measures(trace: Trace) -> dict[str, Curve]:
    return {name: _curve(points) for name, points in measured(trace).items()}


def _curve(points: Sequence[LossPoint] | Sequence[MeasurePoint] | Sequence[ProgressPoint]) -> Curve:
    return Curve(
        seconds=tuple(point.seconds for point in points),
        samples=tuple(point.samples for point in points),
        value=tuple(point.value for point in points),
    )


def _reached(curves: dict[str, Curve], target: str | None) -> tuple[float, int] | None:
    """After how many seconds and samples the target was first met."""
    if target is None:
        return None
    metric, direction, wanted = read_target(target)
    curve = curves.get(metric, Curve())
    for seconds, samples, value in zip(curve.seconds, curve.samples, curve.value, strict=True):
        if value is not None and (value >= wanted if direction == ">=" else value <= wanted):
            return seconds, samples
    return None


def _shares(trace: Trace) -> dict[str, float]:
    if not trace.workers:
        return {}
    overall = breakdown(trace).overall
    shares = {part: getattr(overall, part) for part in PARTS}
    return {part: share for part, share in shares.items() if share or part != "coding"}


def _coding(trace: Trace) -> dict[str, float]:
    found = coding_seconds(trace)
    return {} if found is None else {"workers": found.workers, "servers": found.servers}


def _sent(trace: Trace) -> int | None:
    bytes_ = traffic(trace)
    if bytes_.measured:
        return bytes_.sent
    alone = len({worker.header.rank for worker in trace.workers}) == 1
    # Workers that applied updates themselves, and sent none, wrote into shared memory.
    shared = any(worker.staleness for worker in trace.workers)
    return 0 if alone or shared else None


def _traffic(trace: Trace) -> dict[str, PhaseBytes]:
    counted = traffic(trace)
    if not counted.flows:
        return {}
    return {
        phase: PhaseBytes(
            payload_between=counted.flow(phase, "between").payload_sent,
            wire_between=counted.flow(phase, "between").wire_sent,
            payload_within=counted.flow(phase, "within").payload_sent,
            wire_within=counted.flow(phase, "within").wire_sent,
            workers_sent=counted.workers_flow(phase).payload_sent,
            workers_received=counted.workers_flow(phase).payload_received,
        )
        for phase in PHASES
    }


def _threads(trace: Trace, told: str | None) -> int | None:
    """Threads of each process; a virtual run computes in one."""
    if trace.kind == "virtual":
        return 1
    return int(told) if told and told.isdecimal() else None


def _staleness(trace: Trace) -> StalenessSummary | None:
    spread = staleness(trace)
    if spread is None:
        return None
    return StalenessSummary(
        mean=spread.mean,
        p99=spread.p99,
        most=spread.most,
        updates=spread.updates,
        histogram=staleness_counts(trace),
    )
