"""The cores of a host, shared by its processes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from manyhands.virtual.simulator.kernel import happens, passes

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.virtual.simulator.kernel import Kernel, VirtualEvent
    from manyhands.virtual.simulator.member import VirtualProcess


class Cores:
    """A queue for a number of cores; each is held until its computation is done.

    An operating system would time-slice; here processes queue. The same number of computations is
    done in the same time, but one after another. A paused process keeps its core.

    Args:
        kernel: the clock.
        count: number of cores.
    """

    def __init__(self, kernel: Kernel, count: int) -> None:
        self._kernel = kernel
        self._free = count
        self._holding: set[VirtualProcess] = set()
        self._queue: deque[tuple[VirtualProcess, VirtualEvent]] = deque()

    async def compute(
        self, member: VirtualProcess, seconds: float, begin: Callable[[], object] | None = None
    ) -> float:
        """Wait for a core, call `begin`, and compute for some time; return when it began.

        Time in which the process was paused does not count.
        """
        kernel = self._kernel
        if self._free:
            self._free -= 1
            self._holding.add(member)
        else:
            turn = kernel.event()
            self._queue.append((member, turn))
            await happens(turn)
        begun, stopped = kernel.now, member.stopped
        if begin is not None:
            begin()
        due = begun + seconds
        await passes(seconds)
        # Again after each wait, because it may be paused once more meanwhile.
        while member.stopped != stopped:
            due += member.stopped - stopped
            stopped = member.stopped
            if due > kernel.now:
                await passes(due - kernel.now)
        self._give_up(member)
        return begun

    def drop(self, member: VirtualProcess) -> None:
        """Release the core, and the requests, of a dead process."""
        self._queue = deque(waiting for waiting in self._queue if waiting[0] is not member)
        if member in self._holding:
            self._give_up(member)

    def _give_up(self, member: VirtualProcess) -> None:
        self._holding.remove(member)
        if self._queue:
            heir, turn = self._queue.popleft()
            # Before it is woken: if it dies in between, `drop` finds that it holds the core.
            self._holding.add(heir)
            turn.succeed()
        else:
            self._free += 1
