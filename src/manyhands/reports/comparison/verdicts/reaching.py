"""Times to a target over repeats, some of which missed it: the statistics of censored times.

A run that ended without the target tells only that its time is longer than it trained. Leaving it
out would rank a strategy by its lucky runs. It counts as `PENALTY` times the *horizon*, the longest
that any of the compared runs trained: the penalised average runtime PAR10, by which solvers are
ranked that do not always solve (Hutter, Hoos, Leyton-Brown, Stützle, JAIR 36, 2009). A run that
failed is a run that missed the target.

Strategies are then compared by the logarithms of these times, repeat by repeat. Two runs of one
repeat that both missed the target are a tie, and so are two that took the same time.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

PENALTY: Final = 10.0
"""A run that missed the target counts as so many times the horizon."""

_SHORTEST: Final = 1e-9
"""Seconds of a target that the first evaluation meets, which have a logarithm."""

_Name = TypeVar("_Name")


@dataclass(frozen=True, slots=True)
class TargetAttempt:
    """A run that should reach a target."""

    seconds: float
    """Of training: until the target was measured, or until the end of a run without it."""
    reached: bool


def penalised(
    attempts: Mapping[_Name, Mapping[int, TargetAttempt]],
) -> dict[_Name, dict[int, float]]:
    """The times by strategy and repeat, those of missed targets `PENALTY` times the horizon.

    Empty if no run reached the target: nothing can be ranked by it then.

    >>> reached, missed = TargetAttempt(10.0, True), TargetAttempt(20.0, False)
    >>> penalised({"a": {0: reached, 1: missed}, "b": {0: reached}})
    {'a': {0: 10.0, 1: 200.0}, 'b': {0: 10.0}}
    """
    everyone = [one for repeats in attempts.values() for one in repeats.values()]
    if not any(one.reached for one in everyone):
        return {}
    missed = PENALTY * max(one.seconds for one in everyone)
    return {
        name: {
            repeat: max(one.seconds, _SHORTEST) if one.reached else missed
            for repeat, one in sorted(repeats.items())
        }
        for name, repeats in attempts.items()
        if repeats
    }


def typical(seconds: Iterable[float]) -> float:
    """The geometric mean of penalised times: what strategies are ranked by.

    >>> round(typical([1.0, 100.0]), 9)
    10.0
    """
    logs = [math.log(one) for one in seconds]
    return math.exp(math.fsum(logs) / len(logs))


def share_reached(reached: int, runs: int) -> tuple[float, float]:
    """The interval of the probability that a run reaches the target: 90 %, Wilson's score.

    >>> [round(end, 2) for end in share_reached(3, 3) + share_reached(1, 3)]
    [0.53, 1.0, 0.08, 0.75]
    """
    z = 1.6449
    centre, squared = reached + z * z / 2, z * z
    half = z * math.sqrt(reached * (runs - reached) / runs + squared / 4)
    return (
        max(0.0, (centre - half) / (runs + squared)),
        min(1.0, (centre + half) / (runs + squared)),
    )
