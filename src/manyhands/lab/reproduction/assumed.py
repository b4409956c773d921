"""What a virtual comparison assumed, and whether its fastest strategy depends on it.

The comparison is not made again: a run without numbers of each strategy, a few global batches long,
is made with the assumed value, with half and with twice of it. The measured speed (or the time to
the target) is multiplied by what its time without numbers changes by.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from manyhands.assumptions import REMEDIES, Assumption
from manyhands.cluster.text import LATENCY
from manyhands.costs import CodingSpeeds
from manyhands.failure import RunFailed
from manyhands.lab.planning.timing import with_links
from manyhands.lab.runs import VirtualRuns
from manyhands.reports.figures.speed import throughput
from manyhands.script.job_changes import LIMITS
from manyhands.script.unmeasured import for_times
from manyhands.units import seconds_words
from manyhands.verbs.assumed_values import TIMES, assumes_latency, codecs_within
from manyhands.verbs.simulate import plan
from manyhands.virtual import times as read_times

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.cluster import Link
    from manyhands.job import Job
    from manyhands.lab.design import Design
    from manyhands.lab.order import PlannedRun
    from manyhands.reports import Comparison
    from manyhands.verbs.asked import Asked

_STEPS: Final = 6
"""Global batches of a run without numbers, or two intervals of a strategy that has some."""
_MOST: Final = 64
"""Workers of a comparison that is tried at other values."""
_REMEDIES: Final = {"service": "--service of manyhands simulate"}
_CLEAR: Final = 1.05
"""How much faster another strategy must be at another value to be the fastest there."""


def assumptions_of(design: Design) -> tuple[Assumption, ...]:
    """What the virtual runs of a design assume; nothing of a live one."""
    given = design.virtual
    if given is None:
        return ()
    swept = {name for turn in design.turns[:1] for name, _ in turn.conditions}
    found: dict[str, str] = {}
    if given.times is None and "times" not in swept:
        found["times"] = str(read_times(TIMES))
    codecs = [one for entrant in design.entrants for one in codecs_within(entrant.strategy)]
    if codecs and given.coding is None and "coding" not in swept:
        speeds = CodingSpeeds()
        found["coding"] = "; ".join(dict.fromkeys(f"{one} {speeds.of(one)}" for one in codecs))
    has_links = given.bandwidth is not None or "bandwidth" in swept
    if design.cluster is None and not has_links:
        found["bandwidth"] = "one host, 2 GB/s between processes"
    by_default = given.latency is None and "latency" not in swept and has_links
    if by_default or (design.cluster is not None and assumes_latency(design.cluster)):
        found["latency"] = seconds_words(LATENCY)
    found["service"] = "0 s for an update of a server"
    return tuple(
        Assumption(name=name, value=value, remedy=_REMEDIES.get(name, REMEDIES[name]))
        for name, value in found.items()
    )


def with_consequences(results: Comparison, design: Design, job: Job) -> Comparison:
    """The results with the fastest strategy at half and at twice each assumed value."""
    record = results.design
    if (
        record is None
        or design.virtual is None
        or design.sweeps.texts
        or len(design.entrants) < 2
        or max(design.workers) > _MOST
    ):
        return results
    seconds = _seconds(results, design)
    if len(seconds) < 2:
        return results
    best, way = min(seconds, key=lambda label: seconds[label]), VirtualRuns(design, job)
    turns = {
        turn.entrant.label: turn
        for turn in reversed(design.turns)
        if turn.workers == _workers(design)[turn.entrant.label] and turn.entrant.label in seconds
    }
    try:
        usual = {label: _time(way, turn, lambda asked: asked) for label, turn in turns.items()}
    except (ValueError, TypeError, RunFailed):
        return results  # a job or a strategy that has no run without numbers

    def other(name: str, factor: float) -> str | None:
        change = _CHANGES[name](factor)
        now = {
            label: seconds[label] * _time(way, turn, change) / usual[label]
            for label, turn in turns.items()
        }
        first = min(now, key=lambda label: now[label])
        return None if now[best] < _CLEAR * now[first] else first

    assumed = tuple(
        replace(one, at_half=other(one.name, 0.5), at_twice=other(one.name, 2.0), tried=True)
        if one.name in _CHANGES
        else one
        for one in record.assumed
    )
    return structs.replace(results, design=structs.replace(record, assumed=assumed))


def _workers(design: Design) -> dict[str, int]:
    """By strategy, the most workers that it has: one, if it is for one only."""
    return {one.label: one.workers(max(design.workers)) for one in design.entrants}


def _seconds(results: Comparison, design: Design) -> dict[str, float]:
    """By strategy, what it is ranked by: median seconds to the target, or else of a sample."""
    found: dict[str, list[float]] = {}
    workers = _workers(design)
    for run in results.runs:
        if run.workers == workers.get(run.strategy) and run.status == "finished":
            took = run.time_to_target if results.target else 1 / run.rate if run.rate else None
            if took is not None:
                found.setdefault(run.strategy, []).append(took)
    return {label: statistics.median(each) for label, each in found.items()}


def _time(way: VirtualRuns, turn: PlannedRun, change: Callable[[Asked], Asked]) -> float:
    """Seconds of a sample in a run without numbers."""
    job, strategy = way.job, turn.entrant.strategy
    every = getattr(strategy, "every", 1)
    steps = max(_STEPS, 2 * every if isinstance(every, int) else 1)
    samples = steps * job.batch_sizes.at(0)
    quiet = for_times(job, samples)
    with tempfile.TemporaryDirectory(prefix="manyhands-assumed-") as folder:
        asked = replace(
            way.asked(turn, Path(folder) / "run"),
            **dict.fromkeys(LIMITS),
            time_only=True,
            faults=None,
            lr=None,
        )
        asked = replace(asked, samples=samples)
        run = plan(quiet, change(asked), "comparison").carry_out(lambda _: None)
        return 1 / throughput(run.trace).rate


def _other_latency(factor: float) -> Callable[[Asked], Asked]:
    def changed(asked: Asked) -> Asked:
        if asked.cluster is None or isinstance(asked.cluster, str):
            return asked if asked.bandwidth is None else replace(asked, latency=factor * LATENCY)
        return replace(asked, cluster=with_links(asked.cluster, slower))

    def slower(link: Link) -> Link:
        return replace(link, latency=factor * LATENCY) if link.latency == LATENCY else link

    return changed


_CHANGES: Final[dict[str, Callable[[float], Callable[[Asked], Asked]]]] = {
    "times": lambda factor: lambda asked: replace(asked, stretch=factor * (asked.stretch or 1.0)),
    "coding": lambda factor: lambda asked: replace(asked, coding=CodingSpeeds(factor=factor)),
    "latency": _other_latency,
}
"""By name of an assumed value, a run at so many times it; computing times keep their spread."""
