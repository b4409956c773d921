"""The speed of a run: one definition for all strategies, live and virtual, from the trace alone.

    speed = samples trained on / seconds of training

Training begins when the first worker takes its first batch and ends when the last worker has no
more to do: every sample is part of the model and the last evaluation is done. Nothing in between is
left out, neither evaluations nor the first epoch, so of two runs over the same samples the one that
took less time is always the faster one. What comes before, such as processes that start and the
first copy of the parameters, is start-up.

Epochs and evaluations are timed beside it, to explain a speed and not to decide about it. They
rest on two facts that every runtime records: the event `epoch`, written when the last sample of an
epoch is part of the model and nothing of its evaluation has begun, and the span `evaluate`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from manyhands.trace import Event, ProcessTrace, Trace

_OF_A_BATCH: Final = frozenset(("data", "compute"))
"""What a worker does first about a batch: it loads it, or computes on it."""
_POSITION: Final = re.compile(r"\((\d+) samples, ")
"""In the setting `resumed`: where in the run its checkpoint is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One pass over the data by all workers together."""

    number: int
    samples: int
    seconds: float
    """Without evaluations."""

    @property
    def rate(self) -> float:
        """Samples per second."""
        return per(self.samples, self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """How fast a run trained, start-up excluded, evaluations included."""

    samples: int
    """Those that it trained on itself, without those before the checkpoint it continues from."""
    seconds: float
    start_up: float
    """Seconds from the run's start until the first worker took its first batch."""
    first_epoch: float | None
    """Seconds of the first epoch, without evaluations; None unless another one followed."""
    later_epoch: float | None
    """Seconds of each later epoch on average, without evaluations."""
    evaluation: float | None
    """Seconds of each evaluation on average; None where none took any time."""

    @property
    def rate(self) -> float:
        """Samples per second over the whole of training: the speed of the run."""
        return per(self.samples, self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """Counts of samples seen, repeated and lost; None if they were not recorded."""

    seen: int
    repeated: int | None
    lost: int | None


def training_interval(worker: ProcessTrace) -> tuple[float, float]:
    """When a worker's training began and ended, in seconds since the run's start.

    It began with its first batch; that of a worker which never had one, when it had started up. It
    ended with the event `trained` or, without one, with the last sums.
    """
    batches = (span.start for span in worker.spans if span.kind in _OF_A_BATCH)
    begin = min(batches, default=None)
    if begin is None:
        begin = started(worker)
    end = max((event.at for event in worker.events if event.what == "trained"), default=None)
    return begin, max(worker.totals.at if end is None else end, begin)


def started(worker: ProcessTrace) -> float:
    """When a worker's process was ready to train, in seconds since the run's start.

    When the last `start` span ended that came before any other span (one that comes later is a
    re-start of something within training); without any, when the first other span began.
    """
    others = [span.start for span in worker.spans if span.kind != "start"]
    first = min(others, default=None)
    starts = [
        span.start + span.seconds
        for span in worker.spans
        if span.kind == "start" and (first is None or span.start <= first)
    ]
    return max(starts, default=worker.began if first is None else first)


def training_seconds(trace: Trace) -> tuple[float, float]:
    """From when to when the run trained, in seconds since its start."""
    intervals = [training_interval(worker) for worker in trace.workers]
    if not intervals:
        return 0.0, 0.0
    return min(begin for begin, _ in intervals), max(end for _, end in intervals)


def throughput(trace: Trace) -> Throughput:
    """How fast the run trained."""
    begin, end = training_seconds(trace)
    done, evaluated = epochs(trace), evaluations(trace)
    later = [epoch.seconds for epoch in done[1:]]
    return Throughput(
        samples=trained_here(trace),
        seconds=end - begin,
        start_up=begin,
        first_epoch=done[0].seconds if later else None,
        later_epoch=sum(later) / len(later) if later else None,
        evaluation=_length(evaluated) / len(evaluated) if evaluated else None,
    )


def epochs(trace: Trace) -> tuple[Epoch, ...]:
    """The epochs that ended, in order. One done again after a restart counts as it went last."""
    before_at, _ = training_seconds(trace)
    ended: dict[int, Event] = {}
    # Another worker writes them while the first one is lost.
    others = (event for process in trace.processes for event in process.events)
    also = (event for event in others if event.what == "epoch")
    for event in (*also, *_of_one_process(trace, "epoch")):
        number, samples = _int(event.detail.get("number")), _int(event.detail.get("samples"))
        if number is not None and samples is not None:
            ended[number] = event
    evaluated = evaluations(trace)
    result = []
    before_samples = 0
    for number, event in sorted(ended.items()):
        samples = int(event.detail["samples"])
        whole = max(0.0, event.at - before_at)
        within = ((max(a, before_at), min(b, event.at)) for a, b in evaluated)
        result.append(
            Epoch(
                number=number,
                samples=max(0, samples - before_samples),
                seconds=whole - min(whole, _length(within)),
            )
        )
        before_at, before_samples = event.at, samples
    return tuple(result)


def evaluations(trace: Trace) -> tuple[tuple[float, float], ...]:
    """From when to when the workers evaluated: from the first one's start to the last one's end."""
    spans = sorted(
        (span.start, span.start + max(0.0, span.seconds))
        for worker in trace.workers
        for span in worker.spans
        if span.kind == "evaluate"
    )
    together: list[tuple[float, float]] = []
    for start, stop in spans:
        if together and start <= together[-1][1]:
            together[-1] = (together[-1][0], max(stop, together[-1][1]))
        else:
            together.append((start, stop))
    return tuple(together)


def accounting(trace: Trace) -> Accounting:
    """Samples seen, repeated and lost; if they were not recorded, the workers' own counts."""
    kept = [process.samples for process in trace.processes if process.samples is not None]
    if not kept:
        counted = sum(worker.totals.samples for worker in trace.workers)
        return Accounting(seen=counted, repeated=None, lost=None)
    return Accounting(
        seen=sum(part.seen for part in kept),
        repeated=sum(part.repeated for part in kept),
        lost=sum(part.lost for part in kept),
    )


def samples_before(trace: Trace) -> int:
    """Samples of a run before the checkpoint that it continues from; 0 if it began itself."""
    told = (
        setting.value
        for process in trace.processes
        for setting in process.settings
        if setting.name == "resumed"
    )
    found = (_POSITION.search(value) for value in told)
    return max((int(match[1]) for match in found if match), default=0)


def trained_here(trace: Trace) -> int:
    """Samples that a run trained on itself, without those before the checkpoint."""
    seen = accounting(trace).seen
    if all(process.samples is None for process in trace.processes):
        return seen  # counted by the workers, which know only their own
    return max(0, seen - samples_before(trace))


def per(amount: float, unit: float) -> float:
    """A ratio; 0 where there is nothing to divide by."""
    return amount / unit if unit > 0 else 0.0


def _of_one_process(trace: Trace, what: str) -> list[Event]:
    """The events of that kind, of the first process that wrote any (all of its lives)."""
    writer = None
    found = []
    for process in trace.processes:
        events = [event for event in process.events if event.what == what]
        if events and writer in {None, process.name}:
            writer = process.name
            found += events
    return found


def _length(intervals: Iterable[tuple[float, float]]) -> float:
    return sum(max(0.0, stop - start) for start, stop in intervals)


def _int(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
