"""Workers that are made to compute more slowly on purpose, written `2:4x`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_ALL = "all"
_PACE = re.compile(r"\s*(all|\d{1,9})\s*:\s*(\d{1,9}(?:\.\d{1,9})?)\s*x?\s*")


@dataclass(frozen=True)
class Pace:
    """A worker that takes longer to compute than it needs to; None stands for all of them.

    >>> str(Pace.read("2:4x")), Pace.read("all:1.2x").words
    ('2:4x', 'all workers compute 1.2 times as long')
    """

    worker: int | None
    factor: float
    """How many times as long: 1 is as fast as it can."""

    def __post_init__(self) -> None:
        if not 1 <= self.factor < math.inf:
            raise ValueError(
                f"a worker can be slowed by a factor of 1 or more, not by {self.factor:g}"
            )

    @classmethod
    def read(cls, source: str | Pace) -> Pace:
        """The pace that a text describes: `2:4x` is worker 2, 4 times as long; `all:1.2x`."""
        if isinstance(source, Pace):
            return source
        match = _PACE.fullmatch(source)
        if not match:
            raise ValueError(
                f"{source!r} slows nobody: write a worker and a factor, as in 2:4x, or all:1.2x"
            )
        return cls(None if match[1] == _ALL else int(match[1]), float(match[2]))

    def __str__(self) -> str:
        return f"{_ALL if self.worker is None else self.worker}:{self.factor:g}x"

    @property
    def words(self) -> str:
        """As a report says it."""
        if self.worker is None:
            return f"all workers compute {self.factor:g} times as long"
        return f"worker {self.worker} computes {self.factor:g} times as long"

    def check(self, workers: int) -> None:
        """Raise ValueError, naming the fix, if there is no such worker among so many."""
        if self.worker is not None and self.worker >= workers:
            last = f"they are numbered 0 to {workers - 1}" if workers > 1 else "it has the number 0"
            raise ValueError(f"{self} slows worker {self.worker} of {workers}: {last}")


def factor(paces: Iterable[Pace], rank: int) -> float:
    """How many times as long a worker computes under all of them."""
    return math.prod(pace.factor for pace in paces if pace.worker in (None, rank))


def words(paces: Iterable[Pace]) -> str:
    """What is paced, in words; nothing where nobody is."""
    return ", ".join(pace.words for pace in paces)
