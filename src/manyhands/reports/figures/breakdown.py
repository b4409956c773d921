"""Where the workers' time went: compute, wait, communication, coding, data, evaluation, other.

Most of it is a worker's own sums. Only the time it was exposed to a collective (`exchange`) needs
the others to be understood: it is both waiting for the slowest worker and communicating. The last
to arrive does not wait, so with the exposure e of worker w at a step

    communication = min over workers of e_w        wait_w = e_w − communication

This is worked out on the steps that all workers recorded, each standing for the steps up to the
next one (recorded steps thin out as a run grows), and the share of waiting that comes out is
applied to the exact total.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from manyhands.reports.figures.speed import training_interval
from manyhands.trace import ProcessTrace, Trace

CATEGORY: Final = {
    "compute": "compute",
    "wait": "wait",
    "send": "communication",
    "receive": "communication",
    "encode": "coding",
    "data": "data",
    "evaluate": "evaluation",
}
"""What a kind of span is shown as; `exchange` is a wait and communication, `start` is neither."""
_OUTSIDE_STEPS: Final = frozenset(("start", "evaluate"))

_Seconds = dict[str, float]
"""By category."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of `seconds` of training time; none is negative and they sum to 1."""

    compute: float
    wait: float
    communication: float
    coding: float = 0.0
    """Encoding and decoding, if there is a codec."""
    data: float
    evaluation: float
    other: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Where the time went, of all workers together and of each by its name."""

    overall: Shares
    workers: Mapping[str, Shares]


def breakdown(trace: Trace) -> Breakdown:
    """Where the workers' training time went; time to start up is not part of it.

    A worker whose spans overlap and so sum to more than its wall time is divided by that sum.
    Where no time passed at all, everything is `other`.
    """
    waiting = _waiting_shares(trace.workers)
    lives: dict[str, list[tuple[_Seconds, float]]] = {}
    for worker in trace.workers:
        begin, end = training_interval(worker)
        seconds = _by_category(worker, waiting.get(worker.header.rank, 0.0), begin)
        wall = max(end - begin, sum(seconds.values()))
        lives.setdefault(worker.name, []).append((seconds, wall))
    return Breakdown(
        overall=_shares(life for of_one in lives.values() for life in of_one),
        workers={name: _shares(of_one) for name, of_one in lives.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingSeconds:
    """Seconds of encoding and decoding, over all processes of a role."""

    workers: float
    servers: float


def coding_seconds(trace: Trace) -> CodingSeconds | None:
    """How long codecs took; None if nothing was encoded."""
    seconds = {"worker": 0.0, "server": 0.0}
    for process in trace.processes:
        if process.header.role in seconds:
            seconds[process.header.role] += process.totals.seconds.get("encode", 0.0)
    if not any(seconds.values()):
        return None
    return CodingSeconds(workers=seconds["worker"], servers=seconds["server"])


def _by_category(worker: ProcessTrace, waiting: float, begin: float) -> _Seconds:
    """A worker's exact sums from `begin` on.

    Of its exposure to collectives, the share `waiting` was a wait. What came before `begin`, as the
    first pull of the parameters, is start-up; the spans of that time are all recorded.
    """
    earlier: _Seconds = {}
    for span in worker.spans:
        if span.start < begin:
            before = min(span.seconds, begin - span.start)
            earlier[span.kind] = earlier.get(span.kind, 0.0) + before
    seconds: _Seconds = {}
    for kind, total in worker.totals.seconds.items():
        spent = max(total - earlier.get(kind, 0.0), 0.0)
        if kind == "exchange":
            parts = {"wait": spent * waiting, "communication": spent * (1 - waiting)}
        else:
            category = CATEGORY.get(kind)
            parts = {category: spent} if category else {}
        for category, part in parts.items():
            seconds[category] = seconds.get(category, 0.0) + part
    return seconds


def _shares(lives: Iterable[tuple[_Seconds, float]]) -> Shares:
    total: _Seconds = {}
    wall = 0.0
    for seconds, of_life in lives:
        wall += of_life
        for category, part in seconds.items():
            total[category] = total.get(category, 0.0) + part

    def share(category: str) -> float:
        return total.get(category, 0.0) / wall if wall else 0.0

    busy = sum(share(category) for category in total)
    return Shares(
        compute=share("compute"),
        wait=share("wait"),
        communication=share("communication"),
        coding=share("coding"),
        data=share("data"),
        evaluation=share("evaluation"),
        other=max(0.0, 1.0 - busy),
        seconds=wall,
    )


def _waiting_shares(workers: Iterable[ProcessTrace]) -> dict[int, float]:
    """By rank, the share of a worker's exposure to collectives that it waited for others."""
    exposures: dict[int, dict[int, float]] = {}
    for worker in workers:
        if worker.totals.seconds.get("exchange", 0.0) > 0:
            # A later life repeats the steps since the checkpoint; what it says replaces them.
            exposures.setdefault(worker.header.rank, {}).update(_exposure(worker))
    holders: dict[int, int] = {}
    for by_step in exposures.values():
        for step in by_step:
            holders[step] = holders.get(step, 0) + 1
    chosen = sorted(step for step, count in holders.items() if count == len(exposures))
    if not chosen:
        # No step has all workers, for instance if one died before another joined.
        chosen = sorted(step for step, count in holders.items() if count > 1)
    stands_for = dict(_gaps(chosen))
    least = {
        step: min(by_step[step] for by_step in exposures.values() if step in by_step)
        for step in chosen
    }
    shares = {}
    for rank, by_step in exposures.items():
        steps = [step for step in chosen if step in by_step]
        exposed = sum(by_step[step] * stands_for[step] for step in steps)
        waited = sum((by_step[step] - least[step]) * stands_for[step] for step in steps)
        shares[rank] = min(1.0, waited / exposed) if exposed > 0 else 0.0
    return shares


def _exposure(worker: ProcessTrace) -> dict[int, float]:
    """Seconds of exposure at each recorded step; 0 where the collective was fully overlapped."""
    exposure: dict[int, float] = {}
    for span in worker.spans:
        if span.kind not in _OUTSIDE_STEPS:
            exposed = max(span.seconds, 0.0) if span.kind == "exchange" else 0.0
            exposure[span.step] = exposure.get(span.step, 0.0) + exposed
    return exposure


def _gaps(steps: list[int]) -> Iterable[tuple[int, int]]:
    """Each step with the number of steps it stands for; the last as many as the one before."""
    gap = 1
    for step, following in pairwise(steps):
        gap = following - step
        yield step, gap
    if steps:
        yield steps[-1], gap
