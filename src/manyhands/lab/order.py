"""The runs of a comparison, and the order in which they are made.

The speed of a machine drifts: it warms up, or other programs start. So every *repeat* runs each
entrant once, and the order is reversed from one repeat to the next and rotated by one after every
two. Over each two repeats all entrants have the same mean position, so that a linear drift affects
all equally; and the runs of one repeat, which are close in time and have the same seed, are
compared with each other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.lab.entrants import Conditions, Entrant

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison, planned."""

    entrant: Entrant
    place: int
    """Index of the entrant, from 0."""
    workers: int
    repeat: int
    seed: int
    conditions: Conditions = ()
    """Swept conditions that this run has, beside those of all runs."""

    @property
    def name(self) -> str:
        """The name of its folder, unique in the comparison."""
        parts = (f"{self.repeat}-{self.place}-{_slug(self.entrant.label)}-{self.workers}",)
        return "-".join((*parts, *(_slug(f"{n} {value}") for n, value in self.conditions)))

    def __str__(self) -> str:
        several = "" if self.workers == 1 else "s"
        swept = "".join(f", {name}={value}" for name, value in self.conditions)
        return (
            f"{self.entrant.label} on {self.workers} worker{several}{swept}, "
            f"repeat {self.repeat + 1}"
        )


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")[:60]


def turns(
    entrants: Sequence[Entrant],
    workers: Sequence[int],
    repeats: int,
    seed: int,
    conditions: Sequence[Conditions] = ((),),
) -> tuple[PlannedRun, ...]:
    """All runs, in order; each repeat has its own seed, the same for all runs in it."""
    # single() always runs with one worker, so it runs once per repeat.
    pairs = {
        (place, entrant.workers(asked), varied): entrant
        for varied in conditions
        for asked in workers
        for place, entrant in enumerate(entrants)
    }
    return tuple(
        PlannedRun(entrant, place, count, repeat, seed + repeat, varied)
        for repeat in range(repeats)
        for (place, count, varied), entrant in _turned(list(pairs.items()), repeat)
    )


def _turned(parts: list[_Part], repeat: int) -> list[_Part]:
    by = repeat // 2 % len(parts)
    moved = parts[by:] + parts[:by]
    return moved[::-1] if repeat % 2 else moved
