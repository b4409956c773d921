"""Which hosts take part in a run, and which workers each of them has."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def check_name(name: str) -> None:
    """Raise ValueError if a host cannot be called so."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be a host's name: use letters, digits and -._")


@dataclass(frozen=True)
class Hosts:
    """Hosts in order, each with its number of workers; ranks are dealt in that order.

    Written `a:4, b:4`. The first is the one that begins the run and holds its coordinator and
    servers; it may have no workers.

    >>> Hosts.read("a:1, b:2").ranks("b")
    range(1, 3)
    """

    counts: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        names = self.names
        for name in names:
            check_name(name)
        if len(set(names)) != len(names):
            raise ValueError(f"two hosts have one name: {self}")
        if self.workers < 1:
            raise ValueError(f"the hosts {self} have no workers")
        idle = [name for name, count in self.counts[1:] if count < 1]
        if idle:
            raise ValueError(
                f"{idle[0]} would have nothing to do: only the first host may have no workers"
            )

    @classmethod
    def read(cls, text: str) -> Hosts:
        """The hosts that `text` describes.

        Raises:
            ValueError: it is none such.
        """
        counts = []
        for part in text.split(","):
            name, _, count = part.strip().rpartition(":")
            if not name or not count.isdecimal():
                raise ValueError(
                    f"hosts {text!r} are not of the form 'a:4, b:4': a name and a number of "
                    "workers each, this host first"
                )
            counts.append((name, int(count)))
        return cls(tuple(counts))

    def __str__(self) -> str:
        return ", ".join(f"{name}:{count}" for name, count in self.counts)

    @property
    def names(self) -> tuple[str, ...]:
        """Of all hosts."""
        return tuple(name for name, _ in self.counts)

    @property
    def workers(self) -> int:
        """Of all hosts together."""
        return sum(count for _, count in self.counts)

    def check_count(self, asked: int | None) -> None:
        """Raise ValueError if another number of workers was asked for."""
        if asked not in {None, self.workers}:
            raise ValueError(
                f"{asked} workers are asked for, and the hosts {self} have {self.workers}: "
                "leave out one of the two"
            )

    def ranks(self, name: str) -> range:
        """The workers of a host."""
        ends = [0]
        for _, count in self.counts:
            ends.append(ends[-1] + count)
        return [range(*pair) for pair in pairwise(ends)][self.names.index(name)]

    def missing(self, joined: Container[int]) -> str:
        """Those who are not among the joined, by host: `b:6,7`."""
        words = []
        for name in self.names:
            ranks = [str(rank) for rank in self.ranks(name) if rank not in joined]
            if ranks:
                words.append(f"{name}:{','.join(ranks)}")
        return " ".join(words)
