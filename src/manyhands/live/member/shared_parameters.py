"""Parameters in shared memory, which all processes of a host use in place.

The memory belongs to the agent, which exists as long as the run. It is anonymous, so a killed
process leaves no file behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from manyhands.parameters import UpdateCounts
from manyhands.transport.shared.memory import join

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.live.assignment import Assignment

_LINE = 64
"""Bytes of a cache line: every worker's count has its own, and the parameters start on one."""


class SharedParameters:
    """Shared memory with a count of updates per worker, followed by the parameters.

    Args:
        assignment: the assignment with the descriptor of the memory.
        size: bytes of the parameters.
        fill: writes the initial parameters, if this process is the first to map the memory.
    """

    def __init__(
        self, assignment: Assignment, size: int, fill: Callable[[torch.Tensor], None]
    ) -> None:
        if assignment.memory is None:
            raise ValueError(
                f"{assignment.strategy} needs shared memory, which this run has not reserved"
            )
        begin = _LINE * assignment.workers
        room = begin + size

        def write(memory: memoryview) -> None:
            fill(torch.frombuffer(memory, dtype=torch.uint8)[begin:])

        memory = join(assignment.agent, assignment.memory, room, write)
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        self.parameters = flat[begin:]
        self.writes = UpdateCounts(flat[:begin].view(torch.int64).view(-1, _LINE // 8)[:, 0])
