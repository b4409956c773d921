"""Who is compared: strategies, each perhaps slowed on purpose."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

from manyhands.notation import parse, spelled, split
from manyhands.pacing import Pace
from manyhands.strategies import Strategy, strategy

if TYPE_CHECKING:
    from collections.abc import Iterable

_SLOWED = re.compile(r"(?P<strategy>.*\S)\s+slow\s+(?P<paces>\S.*)", re.DOTALL)


@dataclass(frozen=True)
class Entrant:
    """A strategy that takes part in a comparison, and who is slowed under it and it alone.

    >>> Entrant.read("ssp(staleness=4) slow all:1.2x").label
    'ssp(staleness=4) slow all:1.2x'
    >>> Entrant.read("local_sgd(8)").label
    'local_sgd(every=8)'
    """

    strategy: Strategy
    slow: tuple[Pace, ...] = ()
    number: int = 1
    """Counts those that are alike: a strategy may be held against itself."""
    text: str = field(default="", compare=False)
    """The strategy as it was written; empty if it was given as a value."""
    shown: frozenset[str] = field(default=frozenset(), compare=False)
    """Fields in which entrants of one strategy differ."""

    @classmethod
    def read(cls, source: str | Strategy) -> Entrant:
        """The entrant that a text describes: a strategy, and perhaps `slow` and paces."""
        match = _SLOWED.fullmatch(source.strip()) if isinstance(source, str) else None
        if match is not None:
            paces = tuple(map(Pace.read, match["paces"].split()))
            return cls(strategy(match["strategy"]), paces, text=match["strategy"])
        return cls(strategy(source), text=source.strip() if isinstance(source, str) else "")

    @cached_property
    def label(self) -> str:
        """As tables and charts name it; different for every entrant of a comparison.

        It shows what was written, what differs from the defaults and what differs among entrants.
        """
        name = spelled(self.strategy, parse(self.text) if self.text else None, self.shown)
        slowed = f" slow {' '.join(map(str, self.slow))}" if self.slow else ""
        again = f" #{self.number}" if self.number > 1 else ""
        return f"{name}{slowed}{again}"

    def workers(self, asked: int) -> int:
        """With how many it runs where so many are asked for: `single()` with one, always."""
        return 1 if self.strategy.needs(asked).only_one_worker else asked


def read_entrants(source: str | Iterable[str | Strategy]) -> tuple[Entrant, ...]:
    """The entrants of a comparison: a text with commas between them, or several texts or values.

    Raises:
        NotationError: one is no strategy; the message says where and what to write.
    """
    parts = split(source) if isinstance(source, str) else tuple(source)
    if not parts:
        raise ValueError("name the strategies to compare, as in 'allreduce, ssp(staleness=4)'")
    entrants = [Entrant.read(part) for part in parts]
    found: list[Entrant] = []
    for entrant in entrants:
        what = (entrant.strategy, entrant.slow)
        alike = sum((other.strategy, other.slow) == what for other in found)
        shown = _differing(entrant.strategy, [other.strategy for other in entrants])
        found.append(replace(entrant, number=alike + 1, shown=shown))
    return tuple(found)


def _differing(own: Strategy, others: Iterable[Strategy]) -> frozenset[str]:
    """The fields in which another strategy of the same name has another value."""
    alike = [other for other in others if type(other) is type(own)]
    names = (each.name for each in fields(own))
    return frozenset(
        name for name in names if any(getattr(other, name) != getattr(own, name) for other in alike)
    )
