"""Which runs a comparison consists of, and in which order they are made.

A machine changes while it works: it warms up, somebody else starts something. So every *repeat*
runs everybody once, and the order is turned round from one repeat to the next and moved on by one
after every two. Over each two repeats everybody has the same mean place, so that a drift hits all
alike; and runs of one repeat, which are neighbours in time and have the same seed, are what is held
against each other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.lab.entrants import Entrant

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison."""

    entrant: Entrant
    place: int
    """Of the entrant among all, from 0."""
    workers: int
    repeat: int
    seed: int

    @property
    def name(self) -> str:
        """The name of its folder, different for every turn."""
        words = re.sub(r"[^a-z0-9.]+", "-", self.entrant.label.lower()).strip("-")
        return f"{self.repeat}-{self.place}-{words[:60]}-{self.workers}"

    def __str__(self) -> str:
        several = "" if self.workers == 1 else "s"
        return f"{self.entrant.label} on {self.workers} worker{several}, repeat {self.repeat + 1}"


def turns(
    entrants: Sequence[Entrant], workers: Sequence[int], repeats: int, seed: int
) -> tuple[PlannedRun, ...]:
    """All runs, in their order; each repeat has a seed of its own, the same for all in it."""
    # single() runs with one worker, whatever the others run with: once.
    pairs = {
        (place, entrant.workers(asked)): entrant
        for asked in workers
        for place, entrant in enumerate(entrants)
    }
    return tuple(
        PlannedRun(entrant, place, count, repeat, seed + repeat)
        for repeat in range(repeats)
        for (place, count), entrant in _turned(list(pairs.items()), repeat)
    )


def _turned(parts: list[_Part], repeat: int) -> list[_Part]:
    by = repeat // 2 % len(parts)
    moved = parts[by:] + parts[:by]
    return moved[::-1] if repeat % 2 else moved
