"""Counters in memory that processes of one host share, on which they can wait.

A process that waits looks at the counters for a moment, if there is a core for every process, and
then sleeps in the kernel (a futex), which costs no core. Whoever raises a counter wakes it.

Only x86-64 is supported: its stores become visible in the order in which they are made, so a
counter that was raised after memory was written shows that it was written. Python has no fence
with which other processors could be told to keep that order.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time
from typing import TYPE_CHECKING

from manyhands.transport.shared.layout import LINE

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK = 0.0003
"""Seconds for which a process looks at a counter before it sleeps."""
_WORDS = LINE // 4
_FUTEX = 202
"""The number of the system call on x86-64."""
_WAIT, _WAKE = 0, 1
_ALL = 2**31 - 1
RANGE = 2**32
"""Numbers begin again at 0 there."""
_LEAST = 0.00001
"""Seconds for which a process still looks after it has often looked in vain."""
_SLEEP = 0.02
"""Seconds until a sleeping process looks whether the others are still there."""


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def can_wait() -> bool:
    """Whether processes can wait for counters on this system."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


class Words:
    """Numbers of 32 bits, each in a line of its own, on which processes can wait.

    Args:
        memory: the shared memory, `LINE` bytes for each number, zeros at first.
        processes: number of processes that compute on this host, by which this process decides
            whether it can afford to keep a core while it waits.
        look: seconds for which a process looks at a number before it sleeps, if there is a core
            for every process; fewer after it has looked in vain.
    """

    def __init__(self, memory: memoryview, processes: int, look: float = LOOK) -> None:
        self._words = memory.cast("I")
        self._first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._freed = False
        crowded = processes > len(os.sched_getaffinity(0))
        self._look = self._most = 0.0 if crowded else look
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._sleep = ctypes.byref(_Time(0, int(_SLEEP * 1e9)))

    def read(self, place: int) -> int:
        """The number at a place."""
        return self._words[place * _WORDS]

    def store(self, place: int, value: int) -> None:
        """Change a number, which only this process may do, and wake whoever waits for it."""
        # Before the others are woken: one that wakes and sees the old number sleeps on.
        self._words[place * _WORDS] = value
        self._wake(place)

    def wait(self, place: int, reached: Callable[[], bool], check: Callable[[], object]) -> None:
        """Wait until something is true that depends on the number at a place.

        Args:
            place: the place; another process changes its number.
            reached: whether it is true.
            check: called from time to time; raises if there is nothing more to wait for.

        Raises:
            InterruptedError: `free` was called.
        """
        if self._look:
            until = time.perf_counter() + self._look
            while time.perf_counter() < until:
                for _ in range(20):
                    if reached():
                        self._look = min(self._most, 2 * self._look)
                        return
            # In vain: the other one may have no core, because other processes have it.
            self._look = max(_LEAST, self._look / 2)
        while True:
            # Before `reached` is asked: a change after this line makes the system call return at
            # once. Read later, it could be the new number, and no process would wake this one
            # again.
            seen = self.read(place)
            if self._freed:
                raise InterruptedError("the wait was ended")
            if reached():
                return
            address = ctypes.c_void_p(self._first + LINE * place)
            # Returns at once if the number is not what was seen, and after a while at any rate:
            # a wake-up that came before the call would be missed only when `free` was called.
            expected = ctypes.c_uint(seen)
            self._call(_FUTEX, address, _WAIT, expected, self._sleep, None, 0)
            # Only if nothing came for a while: the check looks at every connection of the group.
            if self.read(place) == seen:
                check()

    def free(self) -> None:
        """Let whoever waits in this process raise, now and later. Thread-safe."""
        self._freed = True
        # Those of other processes look again, and go on sleeping.
        for place in range(len(self._words) // _WORDS):
            self._wake(place)

    def _wake(self, place: int) -> None:
        address = ctypes.c_void_p(self._first + LINE * place)
        self._call(_FUTEX, address, _WAKE, _ALL, None, None, 0)


class Counters(Words):
    """A counter of each process, which only that process raises.

    Args:
        memory: the shared memory, `LINE` bytes for each process, zeros at first.
        own: the place of this process's counter.
        processes: see `Words`.
        look: see `Words`.
    """

    def __init__(self, memory: memoryview, own: int, processes: int, look: float = LOOK) -> None:
        super().__init__(memory, processes, look)
        self._own = own
        self._others = [place for place in range(len(self._words) // _WORDS) if place != own]

    def advance(self) -> int:
        """Raise this process's counter by one, and wake whoever waits for it; return its value."""
        value = (self.read(self._own) + 1) % RANGE
        self.store(self._own, value)
        return value

    def wait_for_all(self, value: int, check: Callable[[], object]) -> None:
        """Wait until the counters of all others have reached a value.

        Args:
            value: what `advance` returned to this process.
            check: called from time to time; raises if there is nothing more to wait for.

        Raises:
            InterruptedError: `free` was called.
        """
        words, half = self._words, RANGE // 2
        for place in self._others:
            at = place * _WORDS
            # By their difference, because counters begin again at 0 in long runs.
            if (words[at] - value) % RANGE >= half:
                self.wait(place, lambda: (words[at] - value) % RANGE < half, check)  # noqa: B023 - called at once
