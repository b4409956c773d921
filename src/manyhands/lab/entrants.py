"""Who is compared: strategies, each perhaps slowed on purpose."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from manyhands.notation import split
from manyhands.pacing import Pace
from manyhands.placements import Single
from manyhands.strategies import Strategy, strategy

if TYPE_CHECKING:
    from collections.abc import Iterable

_SLOWED = re.compile(r"(?P<strategy>.*\S)\s+slow\s+(?P<paces>\S.*)", re.DOTALL)


@dataclass(frozen=True)
class Entrant:
    """A strategy that takes part in a comparison, and who is slowed under it and it alone.

    >>> Entrant.read("ssp(staleness=4) slow all:1.2x").label
    'ssp(staleness=4) slow all:1.2x'
    """

    strategy: Strategy
    slow: tuple[Pace, ...] = ()
    number: int = 1
    """Counts those that are alike: a strategy may be held against itself."""

    @classmethod
    def read(cls, source: str | Strategy) -> Entrant:
        """The entrant that a text describes: a strategy, and perhaps `slow` and paces."""
        match = _SLOWED.fullmatch(source.strip()) if isinstance(source, str) else None
        if match is None:
            return cls(strategy(source))
        return cls(strategy(match["strategy"]), tuple(map(Pace.read, match["paces"].split())))

    @property
    def label(self) -> str:
        """As tables and charts name it; different for every entrant of a comparison."""
        slowed = f" slow {' '.join(map(str, self.slow))}" if self.slow else ""
        again = f" #{self.number}" if self.number > 1 else ""
        return f"{self.strategy}{slowed}{again}"

    def workers(self, asked: int) -> int:
        """With how many it runs where so many are asked for: `single()` with one, always."""
        return 1 if isinstance(self.strategy, Single) else asked


def read_entrants(source: str | Iterable[str | Strategy]) -> tuple[Entrant, ...]:
    """The entrants of a comparison: a text with commas between them, or several texts or values.

    Raises:
        NotationError: one is no strategy; the message says where and what to write.
    """
    parts = split(source) if isinstance(source, str) else tuple(source)
    if not parts:
        raise ValueError("name the strategies to compare, as in 'allreduce, ssp(staleness=4)'")
    found: list[Entrant] = []
    for part in parts:
        entrant = Entrant.read(part)
        alike = sum(other.label.partition(" #")[0] == entrant.label for other in found)
        found.append(replace(entrant, number=alike + 1))
    return tuple(found)
