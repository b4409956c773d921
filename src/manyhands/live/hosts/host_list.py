"""The list of hosts of a run, with the number of workers on each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

_ENDING = re.compile(r"(?:0|[1-9][0-9]{0,5})$")
_RANGE = re.compile(r"(.*)\[([0-9]{1,6})-([0-9]{1,6})\]")
_FEW = 4
"""Fewer hosts than this are named one by one."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def check_name(name: str) -> None:
    """Raise ValueError if this is not a valid host name."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid host name: use letters, digits and -._")


@dataclass(frozen=True)
class Hosts:
    """Hosts in order, each with its number of workers; ranks are assigned in that order.

    Written `a:4, b:4`. The first host starts the run and has its coordinator. A host without
    workers, `a:0`, is for servers, and the first one also for the coordinator alone. Hosts whose
    names are numbered are written `node[0-7]:4`, too.

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
            counts += [(one, int(count)) for one in _numbered(name)]
        return cls(tuple(counts))

    def __str__(self) -> str:
        return ", ".join(f"{name}:{count}" for name, count in self.counts)

    @property
    def short(self) -> str:
        """The text with numbered names together, as in `node[0-7]:4`."""
        parts = []
        for _, run in groupby(enumerate(self.counts), lambda at: _series(at[0], *at[1])):
            these = [one for _, one in run]
            (first, count), (last, _) = these[0], these[-1]
            if len(these) < _FEW:
                parts += [f"{name}:{count}" for name, count in these]
            else:
                start, end = (_ENDING.search(name) for name in (first, last))
                assert start is not None and end is not None  # noqa: S101, PT018 - by _series
                parts.append(f"{first[: start.start()]}[{start[0]}-{end[0]}]:{count}")
        return ", ".join(parts)

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


def _numbered(name: str) -> list[str]:
    """The names that `node[0-7]` stands for; otherwise the name alone."""
    found = _RANGE.fullmatch(name)
    if found is None:
        return [name]
    return [f"{found[1]}{number}" for number in range(int(found[2]), int(found[3]) + 1)]


def _series(at: int, name: str, count: int) -> tuple[str, int, int]:
    """What consecutive hosts with numbered names have in common; others have it for themselves."""
    found = _ENDING.search(name)
    if found is None:
        return name, -1, count
    return name[: found.start()], int(found[0]) - at, count
