"""Where to split: a pure decision on what was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SLACK: Final = 1.05
"""How much longer than necessary the slowest stage may take, if that saves memory: less than what
the measured times differ by from one measurement to the next."""


@dataclass(frozen=True)
class PieceCost:
    """What one piece of a model takes for one microbatch."""

    name: str
    forward: float
    """Seconds."""
    backward: float
    parameters: int
    """Bytes; their gradients take as many again."""
    activations: int
    """Bytes that are kept from the forward for the backward."""

    @property
    def seconds(self) -> float:
        """There and back."""
        return self.forward + self.backward


def partition(pieces: Sequence[PieceCost], held: Sequence[int]) -> tuple[int, ...]:
    """The piece at which each stage begins.

    The slowest stage is what a pipeline waits for, so first of all it is as fast as can be; of the
    ways that are as good in that, but for a few per cent, one is taken whose largest stage needs
    the least memory.

    Args:
        pieces: in the order of the chain, at least as many as there are stages.
        held: for each stage, how many microbatches' activations it holds at once.

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
    """The split whose costliest stage costs least, and what it costs.

    best[stop] is the answer for the first pieces up to `stop` and the stages so far; one more
    stage is put behind each of them.
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
    """The split in words, a line for every stage."""
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
