"""Which assumed values a plan's ranking depends on: it is made again at half and at twice each.

At twice an assumed time no strategy takes less than before, and none more than twice as long; at
half of it none takes more than before, and none less than half. So only strategies that take at
most twice as long as the best one can become the best, and only these are timed again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from manyhands.assumptions import Assumption
from manyhands.cluster.text import LATENCY
from manyhands.costs import CodingSpeeds
from manyhands.costs.coding_speed import MACHINE
from manyhands.lab.planning.timing import LEAST_SPREAD, predict, with_links
from manyhands.units import seconds_words
from manyhands.verbs.assumed_values import assumes_latency, codecs_within
from manyhands.virtual import times as read_times

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from manyhands.cluster import Cluster
    from manyhands.job import Job
    from manyhands.lab.calibration import Calibration
    from manyhands.lab.planning.candidates import Candidate
    from manyhands.lab.planning.learning import TimedCandidate
    from manyhands.lab.planning.objective import Objective, Values
    from manyhands.pacing import Pace
    from manyhands.verbs.asked import Asked

Change: TypeAlias = "Callable[[Asked], Asked]"
_FURTHEST: Final = 2.1
"""How many times as long as the best a strategy may take to be timed again: twice, and the noise of
a repeat."""
_CLEAR: Final = 1.05
"""How much faster another strategy must be at another value to be the best there."""


@dataclass(frozen=True)
class _Tried:
    """An assumed value, how a run changes with it, and which strategies it concerns."""

    assumption: Assumption
    change: Callable[[float], Change]
    concerns: Callable[[Candidate], bool]


def with_consequences(
    found: Sequence[TimedCandidate],
    objective: Objective,
    about: tuple[Job, Cluster, Calibration, Sequence[Pace]],
    *,
    given: Cluster | None,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[Assumption, ...]:
    """What a plan assumed, and which strategy would be the best at half and at twice each value.

    Args:
        found: the strategies with their predicted speeds.
        objective: what they are ranked by.
        about: the job, where it trains, how long a batch takes, and slower workers.
        given: the cluster as it was given; None if it was measured.
        tell: receives what is timed at the moment.
    """
    seconds = objective.values([*found])
    if not seconds:
        return ()
    least = min(seconds.values())
    near = [one for one in seconds if seconds[one] <= _FURTHEST * least]
    best = min(near, key=lambda one: seconds[one])
    again: dict[Candidate, float] = {}

    def rate(one: Candidate, change: Change) -> float:
        return predict(about[0], one, *about[1:], repeats=1, reasons=False, change=change).rate

    def other(tried: _Tried, factor: float) -> str | None:
        """The best strategy at so many times the value, if it is another one."""
        now = dict.fromkeys(near, 0.0)
        for one in near:
            now[one] = seconds[one]
            if tried.concerns(one):
                again[one] = again.get(one) or rate(one, lambda asked: asked)
                now[one] *= again[one] / rate(one, tried.change(factor))
        return _another(now, best)

    made = []
    for tried in _assumed(about[2], given, [one.candidate for one in found]):
        assumption = tried.assumption
        if any(map(tried.concerns, near)):
            tell(f"{assumption.name} at half and at twice {assumption.value}")
            assumption = replace(
                assumption, at_half=other(tried, 0.5), at_twice=other(tried, 2.0), tried=True
            )
        made.append(assumption)
    for one in objective.retried([*found]):
        half, twice = (_another(one.values(factor), best) for factor in (0.5, 2.0))
        made.append(replace(one.assumption, at_half=half, at_twice=twice, tried=True))
    return (*made, *_free(about[2], [one.candidate for one in found]))


def _another(values: Values, best: Candidate) -> str | None:
    """The best strategy by other values, if it is another one and clearly better."""
    first = min(values, key=lambda one: values[one])
    if first is best or values[best] < _CLEAR * values[first]:
        return None
    return f"{first} on {first.workers} worker{'' if first.workers == 1 else 's'}"


def _assumed(
    known: Calibration, given: Cluster | None, candidates: Sequence[Candidate]
) -> list[_Tried]:
    """The values that are assumed, each with what it changes."""
    found = []
    if known.assumed:
        speed = Assumption(
            name="computing speed",
            value=f"{known.assumed} per worker",
            remedy="--calibration of such a machine",
        )
        found.append(_Tried(speed, lambda factor: _stretched(1 / factor), lambda _: True))
    if any(map(_runs_freely, candidates)):
        spread = Assumption(
            name="spread of a batch's time",
            value=f"{100 * LEAST_SPREAD:.0f} % where workers do not wait for each other"
            + (", none elsewhere" if known.assumed else ""),
            remedy="--calibration of such a machine",
        )
        found.append(_Tried(spread, _spread, _runs_freely))
    unknown = [codec for one in candidates for codec in unmeasured_codecs(one, known)]
    if unknown:
        speeds = CodingSpeeds()
        each = "; ".join(dict.fromkeys(f"{one} {speeds.of(one)}" for one in unknown))
        coding = Assumption(
            name="speed of codecs", value=f"{each}, as on {MACHINE}", remedy="--coding 2GB/s"
        )
        found.append(
            _Tried(
                coding,
                lambda factor: lambda asked: replace(asked, coding=CodingSpeeds(factor=factor)),
                lambda one: bool(unmeasured_codecs(one, known)),
            )
        )
    if given is not None and assumes_latency(given):
        latency = Assumption(
            name="latency of links",
            value=seconds_words(LATENCY),
            remedy="--cluster '…, 1gbit and 0.5ms'",
        )
        found.append(_Tried(latency, _latency, lambda one: one.workers > 1))
    return found


def _free(known: Calibration, candidates: Sequence[Candidate]) -> tuple[Assumption, ...]:
    """What is assumed to take no time beside its messages, which half and twice do not change."""
    if not known.assumed or all(one.workers == 1 for one in candidates):
        return ()
    return (
        Assumption(
            name="servers and collectives",
            value="no time beside their messages",
            remedy="--calibration of such a machine",
        ),
    )


def unmeasured_codecs(candidate: Candidate, known: Calibration) -> list[Any]:
    """The codecs of a strategy whose speed the calibration does not have."""
    codecs = dict.fromkeys(codecs_within(candidate.strategy))
    return [one for one in codecs if known.coding_speed(one) is None]


def _runs_freely(candidate: Candidate) -> bool:
    needs = candidate.strategy.needs(candidate.workers)
    return candidate.workers > 1 and needs.leases and not needs.lockstep


def _stretched(factor: float) -> Change:
    return lambda asked: replace(asked, stretch=factor * (asked.stretch or 1.0))


def _spread(factor: float) -> Change:
    def changed(asked: Asked) -> Asked:
        found: Any = read_times(asked.times or "")
        varied = hasattr(found, "cv")
        return replace(asked, times=replace(found, cv=factor * found.cv)) if varied else asked

    return changed


def _latency(factor: float) -> Change:
    """Other latencies of the links whose text has none."""

    def changed(asked: Asked) -> Asked:
        if asked.cluster is None or isinstance(asked.cluster, str):
            return asked
        links = with_links(
            asked.cluster,
            lambda link: (
                replace(link, latency=factor * LATENCY) if link.latency == LATENCY else link
            ),
        )
        return replace(asked, cluster=links)

    return changed
