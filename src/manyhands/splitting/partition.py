"""Partition of pieces into stages: a pure function of measured costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SLACK: Final = 1.05
"""How much slower than optimal the slowest stage may be, if that saves memory: less than the noise
of measured times."""


@dataclass(frozen=True)
class PieceCost:
    """Time and memory of one piece of a model for one microbatch."""

    name: str
    forward: float
    """Seconds."""
    backward: float
    parameters: int
    """Bytes of parameters, without gradients."""
    activations: int
    """Bytes that are saved in the forward for the backward."""

    @property
    def seconds(self) -> float:
        """Seconds of forward and backward."""
        return self.forward + self.backward


def partition(pieces: Sequence[PieceCost], held: Sequence[int]) -> tuple[int, ...]:
    """The piece at which each stage begins.

    A pipeline is as fast as its slowest stage, so that stage's time is minimised first; of the
    partitions within a few per cent of the optimum, the one whose largest stage needs the least
    memory is chosen.

    Args:
        pieces: in the order of the chain, at least as many as stages.
        held: for each stage, the number of microbatches in flight.

    Example:
        >>> layers = [PieceCost(name, 1.0, 2.0, 8, 4) for name in "abcdef"]
        >>> partition(layers, held=[3, 2, 1])
        (0, 2, 4)
    """
    if len(pieces) < len(held):
        raise ValueError(f"{len(pieces)} pieces cannot become {len(held)} stages")
    ends = [0.0, *accumulate(piece.seconds for piece in pieces)]
    kept = [0, *accumulate(2 * piece.parameters for piece in pieces)]
    live = [0, *accumulate(piece.activations for piece in pieces)]

    def seconds(_: int, first: int, stop: int) -> float:
        return ends[stop] - ends[first]

    fastest, _ = _best(len(pieces), len(held), seconds)

    def memory(stage: int, first: int, stop: int) -> float:
        if seconds(stage, first, stop) > fastest * _SLACK:
            return math.inf
        return kept[stop] - kept[first] + held[stage] * (live[stop] - live[first])

    return _best(len(pieces), len(held), memory)[1]


def _best(
    pieces: int, stages: int, cost: Callable[[int, int, int], float]
) -> tuple[float, tuple[int, ...]]:
    """The partition that minimises the largest cost of a stage, and that cost.

    Dynamic programming: best[stop] is the answer for the pieces up to `stop` and the stages so far;
    each iteration adds one stage.
    """
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for stage in range(stages):
        left = stages - stage - 1
        best = {
            stop: min(
                (max(worst, cost(stage, first, stop)), (*starts, first))
                for first, (worst, starts) in best.items()
                if first < stop
            )
            for stop in range(stage + 1, pieces - left + 1)
        }
    return best[pieces]


def describe(
    pieces: Sequence[PieceCost], starts: Sequence[int], held: Sequence[int]
) -> tuple[str, ...]:
    """A description of the partition, a line for every stage."""
    total = sum(piece.seconds for piece in pieces) or 1.0
    lines = []
    for stage, (first, stop) in enumerate(zip(starts, [*starts[1:], len(pieces)], strict=True)):
        own = pieces[first:stop]
        names = own[0].name if len(own) == 1 else f"{own[0].name} to {own[-1].name}"
        seconds = sum(piece.seconds for piece in own)
        parameters = sum(piece.parameters for piece in own)
        activations = held[stage] * sum(piece.activations for piece in own)
        lines.append(
            f"stage {stage}: {names}, {100 * seconds / total:.0f} % of the time, "
            f"{_size(parameters)} of parameters, {_size(activations)} of activations"
        )
    return tuple(lines)


def _size(size: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"
