"""Sums over the workers of one host, in memory that they share.

Each worker of N sums one Nth of a tensor: the others write theirs into memory that all have mapped
(reduce-scatter), it adds them in the order of ranks, and all read the sums (all-gather). So a sum
is the same to the bit in every run, on every worker and for every division of the tensors, which
a sum over connections is not. A worker writes and reads 2·m·(N − 1)/N of m bytes, as in a ring.

On several hosts with the same number of workers, those that sum the same part in each host sum it
between hosts before it is read: each number crosses the network once for a host, and not once for
each of its workers.

The memory is anonymous and sealed: it ends with the last process that has it mapped.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
from typing import TYPE_CHECKING, NamedTuple

import torch

from manyhands.failure import PeerLost
from manyhands.transport.memory import Foreign, Segment, can_share
from manyhands.transport.shared.counters import LOOK, Counters, can_wait
from manyhands.transport.shared.layout import LINE, bounds_of, first_slot, room
from manyhands.wire.envelope import SharedBytes
from manyhands.wire.message import WireError

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.engine import Store

SUMMABLE = (torch.float32, torch.float64, torch.bfloat16)
"""Types of numbers that are summed here: a sum of float16 could overflow before it is divided."""
_TOKEN = 16


class _Places(NamedTuple):
    """Where the numbers of a chunk are in shared memory."""

    bounds: list[int]
    """Where the part of each worker begins in the chunk, and the end."""
    before: torch.Tensor
    """In this worker's slot: what it has for workers of lower ranks."""
    behind: torch.Tensor
    """In this worker's slot: what it has for workers of higher ranks."""
    parts: list[torch.Tensor | None]
    """In all slots: what the workers have for this one; None for its own."""
    sums: list[torch.Tensor]
    """The sum of each worker's part, in its slot."""


class BetweenHosts(NamedTuple):
    """How the sums of a host become those of several hosts with the same number of workers."""

    hosts: int
    sum: Callable[[torch.Tensor], object]
    """Replaces a tensor by its sum over the workers of the same rank in each host."""


class SharedSum:
    """Averages tensors over the workers of a host and, by way of these, over several hosts.

    Args:
        memory: of `room` bytes, the same for all workers, zeros at first.
        rank: this worker's rank.
        size: number of workers.
        check: raises if a worker is lost; called while this worker waits.
        between: sums with other hosts, if there are any.
    """

    def __init__(
        self,
        memory: memoryview,
        rank: int,
        size: int,
        check: Callable[[], object],
        between: BetweenHosts | None = None,
    ) -> None:
        self.rank, self.size = rank, size
        self.between = between
        begin = first_slot(size)
        # A sum between hosts takes longer than any look at a counter.
        look = LOOK if between is None else 0.0
        self._counters = Counters(memory[LINE : LINE * (1 + size)], rank, size, look)
        self._notes = memory[LINE * (1 + size) :][: 8 * size].cast("d")
        """Of each worker, the sum of the part of the mean that it computed last."""
        self._check = check
        self._factor = 1.0 / (size * (1 if between is None else between.hosts))
        self._slot = slot = (len(memory) - begin) // (2 * size)
        self._halves = [
            torch.frombuffer(memory[begin + half * size * slot :][: size * slot], dtype=torch.uint8)
            for half in range(2)
        ]
        """Slots of all workers, twice: what a slow worker still reads of one chunk must not be
        overwritten by the next, whose parts may begin elsewhere."""
        self._turn = 0
        self._known: dict[tuple[int, int, torch.dtype], _Places] = {}
        self.exchanged = [0] * size
        """Bytes that this worker has written for each other one, and as many read from it: the
        other one's part of its own tensor, and its part of the sum."""

    def average(self, flat: torch.Tensor) -> bool:
        """Replace a contiguous vector, on every worker, by the mean over all workers.

        Returns:
            Whether all numbers of the mean are finite, the same on all workers. False also if the
            sum of finite numbers is too large for their type.

        Raises:
            PeerLost: `free` was called.
        """
        finite = True
        try:
            most = self._slot // flat.element_size()
            for chunk in [flat] if len(flat) <= most else torch.split(flat, most):
                finite &= self._average(chunk, self._places(len(chunk), chunk.dtype))
                self._turn = 1 - self._turn
        except InterruptedError:
            raise PeerLost(f"a sum of worker {self.rank} was given up") from None
        return finite

    def _average(self, chunk: torch.Tensor, places: _Places) -> bool:
        own, factor = self.rank, self._factor
        begin, end = places.bounds[own], places.bounds[own + 1]
        if begin:
            places.before.copy_(chunk[:begin])
        if end < len(chunk):
            places.behind.copy_(chunk[end:])
        counters = self._counters
        counters.wait(counters.advance(), self._check)
        mine, total = chunk[begin:end], places.sums[own]
        parts = [mine if part is None else part for part in places.parts]
        if len(parts) == 1:
            total.copy_(mine)
        else:
            torch.add(parts[0], parts[1], out=total)
        for more in parts[2:]:
            total.add_(more)
        if self.between is not None and len(total):
            self.between.sum(total)
        self._notes[own] = float(torch.mul(total, factor, out=mine).sum())
        # Nobody writes into these slots again before all have raised their counters for the next
        # chunk, and they do that when they have read these sums.
        counters.wait(counters.advance(), self._check)
        for place, total in enumerate(places.sums):
            if place != own:
                first, last = places.bounds[place], places.bounds[place + 1]
                torch.mul(total, factor, out=chunk[first:last])
                self.exchanged[place] += (end - begin + last - first) * chunk.element_size()
        return math.isfinite(sum(self._notes))

    def _places(self, length: int, dtype: torch.dtype) -> _Places:
        """Where a chunk of so many numbers is, in the memory whose turn it is."""
        key = (self._turn, length, dtype)
        if key not in self._known:
            slots = self._halves[self._turn].view(dtype).chunk(self.size)
            bounds = bounds_of(length, self.size)
            begin, end = bounds[self.rank], bounds[self.rank + 1]
            mine = slots[self.rank]
            self._known[key] = _Places(
                bounds,
                before=mine[:begin],
                behind=mine[end:length],
                parts=[None if slot is mine else slot[begin:end] for slot in slots],
                sums=[
                    slot[first:last]
                    for slot, first, last in zip(slots, bounds, bounds[1:], strict=False)
                ],
            )
        return self._known[key]

    def free(self) -> None:
        """Unblock this worker's caller of `average`, which raises. Thread-safe."""
        self._counters.free()


def agree(
    store: Store, rank: int, size: int, chunk: int, all_of: Callable[[bool], bool]
) -> memoryview | None:
    """Map memory for sums of `size` workers; None if not all of them can map the same.

    Args:
        store: shared by the workers, with keys of its own.
        rank: this worker's rank.
        size: number of workers.
        chunk: bytes that are summed at once.
        all_of: whether something is true on all workers.
    """
    segment = None
    if rank == 0:
        if can_share() and can_wait():
            with contextlib.suppress(OSError):
                segment = Segment(room(chunk, size))
        token = secrets.token_bytes(_TOKEN)
        place = ""
        if segment is not None:
            segment.memory[:_TOKEN] = token
            place = f"{os.getpid()} {segment.descriptor} {token.hex()}"
        store.set("place", place or "nowhere")
    place = store.get("place").decode("ascii")
    memory = None
    if segment is not None:
        memory = segment.memory
    elif place != "nowhere" and can_wait():
        memory = _foreign(place, room(chunk, size))
    # Kept open until all have opened it.
    shared = all_of(memory is not None)
    if segment is not None:
        segment.close()
    return memory if shared else None


def _foreign(place: str, size: int) -> memoryview | None:
    """The memory at a place, unless another process has this number there, as in a container."""
    pid, descriptor, token = place.split()
    try:
        there = Foreign(int(pid), int(descriptor))
        memory = there.view(SharedBytes(int(pid), int(descriptor), 0, size))
    except WireError:
        return None
    return memory if bytes(memory[:_TOKEN]).hex() == token else None
