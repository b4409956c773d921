"""Parameters that all processes of a host use where they lie.

The memory belongs to the agent, which lives as long as the run. It has no name in any folder, so
whoever is killed leaves nothing behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from manyhands.parameters import UpdateCounts
from manyhands.transport.memory import join

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.live.assignment import Assignment

_LINE = 64
"""Bytes of a cache line: every worker's count has one, and the parameters begin on one."""


class SharedParameters:
    """Every worker's count of its updates, then the parameters.

    Args:
        assignment: whose `memory` it is.
        size: bytes of the parameters.
        fill: writes the first parameters, if this process is the first to come.
    """

    def __init__(
        self, assignment: Assignment, size: int, fill: Callable[[torch.Tensor], None]
    ) -> None:
        if assignment.memory is None:
            raise ValueError(f"{assignment.strategy} needs memory that this run has not reserved")
        begin = _LINE * assignment.workers
        room = begin + size

        def write(memory: memoryview) -> None:
            fill(torch.frombuffer(memory, dtype=torch.uint8)[begin:])

        memory = join(assignment.agent, assignment.memory, room, write)
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        self.parameters = flat[begin:]
        self.writes = UpdateCounts(flat[:begin].view(torch.int64).view(-1, _LINE // 8)[:, 0])
