"""Incarnation numbers: how many times a worker or server has been started.

An agent counts the starts of each of its processes, and passes a process its number in the
environment. A wall clock is not suitable: after it was set back, a restarted process would count as
older than the one that it replaces, and its messages would be ignored.
"""

from __future__ import annotations

import os

INCARNATION = "MANYHANDS_INCARNATION"
"""Environment variable with the incarnation number of a process."""
_STARTS = 1 << 20
"""More than the number of starts of one process under one agent."""


def incarnation() -> int:
    """The number of this process, greater than that of any predecessor with the same name."""
    return int(os.environ.get(INCARNATION, "0"))


class Incarnations:
    """An agent's count of the starts of its processes.

    Args:
        admission: how many agents this run has admitted before; an agent that joins for a host that
            was lost starts processes whose predecessors another agent has counted.
    """

    def __init__(self, admission: int = 0) -> None:
        self._first = admission * _STARTS
        self._starts: dict[str, int] = {}

    def next(self, name: str) -> int:
        """The number of the process that is started now with this name."""
        self._starts[name] = self._starts.get(name, 0) + 1
        return self._first + self._starts[name]
