"""Search for the first seed that breaks a law, in this process or in several forked ones.

Forked processes have the protocol and the laws already, whatever these are, so nothing is sent to
them. Each writes the first broken seed of its own to shared memory. The result is the lowest of
all, so it does not depend on the number of processes.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import threading
import warnings
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MANY: Final = 200
"""Seeds from which on several processes are used."""
_SLOT: Final = struct.Struct("<q")
_NONE: Final = -1


def choose_processes(asked: int | None, seeds: int) -> int:
    """The number of processes: as asked, or by the number of seeds and cores."""
    if asked is not None:
        if asked < 1:
            raise ValueError(f"processes must be at least 1, got {asked}")
        return min(asked, max(1, seeds))
    # A fork copies only the thread that calls it.
    if seeds < _MANY or threading.active_count() > 1:
        return 1
    return len(os.sched_getaffinity(0))


def first_broken(breaks: Callable[[int], bool], seeds: Sequence[int], processes: int) -> int | None:
    """The lowest seed for which `breaks` is true; None if there is none."""
    if processes == 1:
        return next((seed for seed in seeds if breaks(seed)), None)
    with mmap.mmap(-1, processes * _SLOT.size) as slots:
        for index in range(processes):
            _SLOT.pack_into(slots, index * _SLOT.size, _NONE)
        children: list[int] = []
        try:
            for index in range(processes):
                child = _fork(slots, index, breaks, seeds[index::processes], processes)
                children.append(child)
            while children:
                _, status = os.waitpid(children[0], 0)
                children.pop(0)
                if status:
                    raise RuntimeError(
                        "a process that simulates seeds ended with exit code "
                        f"{os.waitstatus_to_exitcode(status)}: use processes=1 to see why"
                    )
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        return min(_found(slots, processes), default=None)


def _found(slots: mmap.mmap, processes: int) -> list[int]:
    read = (_SLOT.unpack_from(slots, index * _SLOT.size)[0] for index in range(processes))
    return [seed for seed in read if seed != _NONE]


def _fork(
    slots: mmap.mmap,
    index: int,
    breaks: Callable[[int], bool],
    seeds: Sequence[int],
    processes: int,
) -> int:
    parent = os.getpid()
    with warnings.catch_warnings():
        # Threads of BLAS libraries survive a fork; Python's own were counted before.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        torch.set_num_threads(1)
        for seed in seeds:
            if os.getppid() != parent or min(_found(slots, processes), default=seed) < seed:
                break
            if breaks(seed):
                _SLOT.pack_into(slots, index * _SLOT.size, seed)
                break
        code = 0
    finally:
        os._exit(code)
