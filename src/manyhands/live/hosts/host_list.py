"""The list of hosts of a run, with the number of workers on each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def check_name(name: str) -> None:
    """Raise ValueError if this is not a valid host name."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid host name: use letters, digits and -._")


@dataclass(frozen=True)
class Hosts:
    """Hosts in order, each with its number of workers; ranks are assigned in that order.

    Written `a:4, b:4`. The first host starts the run and has its coordinator. A host without
    workers, `a:0`, is for servers, and the first one also for the coordinator alone.

    >>> Hosts.read("a:1, b:2").ranks("b")
    range(1, 3)
    """

    counts: tuple[tuple[str, int], ...]
    started_by: str = ""
    """What starts the agents of the other hosts: `slurm`; empty if their users do."""

    def __post_init__(self) -> None:
        names = self.names
        for name in names:
            check_name(name)
        if len(set(names)) != len(names):
            raise ValueError(f"two hosts have the same name: {self}")
        if self.workers < 1:
            raise ValueError(f"there must be at least 1 worker, but the hosts {self} have none")

    @classmethod
    def read(cls, text: str) -> Hosts:
        """Parse hosts from text.

        Raises:
            ValueError: the text is not of the form `a:4, b:4`.
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
        """Names of the hosts, in order."""
        return tuple(name for name, _ in self.counts)

    @property
    def workers(self) -> int:
        """Number of workers on all hosts."""
        return sum(count for _, count in self.counts)

    def check_count(self, asked: int | None) -> None:
        """Raise ValueError if a different number of workers was given."""
        if asked not in {None, self.workers}:
            raise ValueError(
                f"workers is {asked}, but the hosts {self} have {self.workers}: omit one of the two"
            )

    def ranks(self, name: str) -> range:
        """The ranks of a host's workers."""
        ends = [0]
        for _, count in self.counts:
            ends.append(ends[-1] + count)
        return [range(*pair) for pair in pairwise(ends)][self.names.index(name)]

    def missing(self, joined: Container[int]) -> str:
        """The ranks that have not joined, by host: `b:6,7`."""
        words = []
        for name in self.names:
            ranks = [str(rank) for rank in self.ranks(name) if rank not in joined]
            if ranks:
                words.append(f"{name}:{','.join(ranks)}")
        return " ".join(words)
