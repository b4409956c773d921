"""Fastest allreduce for a size and a number of workers, and the sizes at which it changes.

The time of every algorithm is linear in the size m: a constant of latencies, and a slope. Two of
them cross at one size at most, and the fastest ones form the lower envelope of the lines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.costs.allreduce import BETWEEN_WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from manyhands.costs.allreduce import AllreduceCost, LinkSpeed


@dataclass(frozen=True)
class FastestRange:
    """Sizes for which one algorithm is the fastest."""

    algorithm: str
    begin: float
    """Bytes."""
    end: float
    """Bytes; infinite for the last range."""


def fastest(
    size: float,
    workers: int,
    link: LinkSpeed,
    among: Mapping[str, Callable[[float, int], AllreduceCost]] = BETWEEN_WORKERS,
) -> str:
    """Name of the fastest algorithm; of equally fast ones the first.

    Args:
        size: bytes of the vector.
        workers: number of workers.
        link: their links.
        among: the algorithms by name.

    >>> from manyhands.costs import LinkSpeed
    >>> link = LinkSpeed(latency=50e-6, bandwidth=1.25e9)
    >>> fastest(4e3, 64, link), fastest(102.4e6, 64, link), fastest(102.4e6, 65, link)
    ('butterfly', 'halving', 'ring')
    """
    return min(among, key=lambda name: among[name](size, workers).seconds(link))


def crossover(
    first: Callable[[float, int], AllreduceCost],
    second: Callable[[float, int], AllreduceCost],
    workers: int,
    link: LinkSpeed,
) -> float | None:
    """Bytes at which two algorithms take the same time; None if one is faster for all sizes.

    With T(m) = a + b·m for each of them: m = (a₂ − a₁)/(b₁ − b₂).

    Args:
        first: an algorithm.
        second: another.
        workers: number of workers.
        link: their links.

    >>> from manyhands.costs import LinkSpeed, butterfly, halving, ring, tree
    >>> round(crossover(butterfly, halving, 64, LinkSpeed(latency=50e-6, bandwidth=1.25e9)))
    93023
    >>> crossover(tree, butterfly, 64, LinkSpeed(50e-6, 1.25e9)) is None
    True
    """
    one, other = _line(first, workers, link), _line(second, workers, link)
    if one[1] == other[1]:
        return None
    size = (other[0] - one[0]) / (one[1] - other[1])
    return size if size > 0 else None


def fastest_ranges(
    workers: int,
    link: LinkSpeed,
    among: Mapping[str, Callable[[float, int], AllreduceCost]] = BETWEEN_WORKERS,
) -> tuple[FastestRange, ...]:
    """The fastest algorithm for every size, from 0 bytes on.

    Args:
        workers: number of workers.
        link: their links.
        among: the algorithms by name.

    >>> from manyhands.costs import LinkSpeed
    >>> link = LinkSpeed(latency=50e-6, bandwidth=1.25e9)
    >>> [(one.algorithm, round(one.begin)) for one in fastest_ranges(64, link)]
    [('butterfly', 0), ('halving', 93023)]
    """
    lines = {name: _line(algorithm, workers, link) for name, algorithm in among.items()}
    # At 0 bytes the constant decides, then the slope.
    name = min(lines, key=lambda each: lines[each])
    found: list[FastestRange] = []
    begin = 0.0
    while True:
        constant, slope = lines[name]
        flatter = {
            other: (lines[other][0] - constant) / (slope - lines[other][1])
            for other in lines
            if lines[other][1] < slope
        }
        if not flatter:
            return (*found, FastestRange(name, begin, math.inf))
        successor = min(flatter, key=lambda other: (flatter[other], lines[other][1]))
        if flatter[successor] > begin:
            found.append(FastestRange(name, begin, flatter[successor]))
            begin = flatter[successor]
        name = successor


def _line(
    algorithm: Callable[[float, int], AllreduceCost], workers: int, link: LinkSpeed
) -> tuple[float, float]:
    """Seconds for 0 bytes, and seconds for each further byte."""
    constant, unit = algorithm(0, workers), algorithm(1, workers)
    slope = unit.transferred / link.bandwidth + unit.reduced / link.reduction
    return constant.seconds(link), slope
