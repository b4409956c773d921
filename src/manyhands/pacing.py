"""Artificial slow-down of workers, written `2:4x`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_ALL = "all"
_PACE = re.compile(r"\s*(all|\d{1,9})\s*:\s*(\d{1,9}(?:\.\d{1,17})?)\s*x?\s*")


@dataclass(frozen=True)
class Pace:
    """The slow-down of one worker, or of all workers if `worker` is None.

    >>> str(Pace.read("2:4x")), Pace.read("all:1.2x").words
    ('2:4x', 'all workers compute 1.2 times as long')
    """

    worker: int | None
    factor: float
    """Factor of the compute time; 1 for full speed."""

    def __post_init__(self) -> None:
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"the factor of a slow-down must be 1 or more, got {self.factor:g}")

    @classmethod
    def read(cls, source: str | Pace) -> Pace:
        """The pace that a text describes: `2:4x` is worker 2, 4 times as long; `all:1.2x`."""
        if isinstance(source, Pace):
            return source
        match = _PACE.fullmatch(source)
        if not match:
            raise ValueError(
                f"expected a worker and a factor, such as 2:4x or all:1.2x, got {source!r}"
            )
        return cls(None if match[1] == _ALL else int(match[1]), float(match[2]))

    def __str__(self) -> str:
        return f"{_ALL if self.worker is None else self.worker}:{self._times}x"

    @property
    def words(self) -> str:
        """A description for reports."""
        if self.worker is None:
            return f"all workers compute {self._times} times as long"
        return f"worker {self.worker} computes {self._times} times as long"

    @property
    def _times(self) -> str:
        """The factor with all of its digits: two paces that differ have two texts."""
        return repr(float(self.factor)).removesuffix(".0")

    def check(self, workers: int) -> None:
        """Raise ValueError, naming the fix, if there is no such worker."""
        if self.worker is not None and self.worker >= workers:
            ranks = f"0 to {workers - 1}" if workers > 1 else "0"
            raise ValueError(f"{self} names worker {self.worker}: the run has workers {ranks}")


def factor(paces: Iterable[Pace], rank: int) -> float:
    """The combined factor of a worker's compute time."""
    return math.prod(pace.factor for pace in paces if pace.worker in (None, rank))


def words(paces: Iterable[Pace]) -> str:
    """A description of all slow-downs; empty if there are none."""
    return ", ".join(pace.words for pace in paces)
