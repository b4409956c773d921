"""Life numbers: which incarnation of a worker or server a process is.

An agent counts the starts of each process that it has, and gives a process its number in the
environment. A wall clock could not do that: after it was set back, a process that is started again
would count as older than the one that it replaces, and all that it says would be ignored.
"""

from __future__ import annotations

import os

LIFE = "MANYHANDS_LIFE"
"""The environment variable that holds a process's number."""
_STARTS = 1 << 20
"""More than the starts of one process under one agent."""


def life() -> int:
    """This process's number: greater than that of any predecessor under the same name."""
    return int(os.environ.get(LIFE, "0"))


class Incarnations:
    """An agent's count of the starts of its processes.

    Args:
        admission: how many agents this run has let in before; one that joins again, for a host that
            was lost, starts processes whose predecessors another agent counted.
    """

    def __init__(self, admission: int = 0) -> None:
        self._first = admission * _STARTS
        self._starts: dict[str, int] = {}

    def next(self, name: str) -> int:
        """The number of the process that is started now under this name."""
        self._starts[name] = self._starts.get(name, 0) + 1
        return self._first + self._starts[name]
