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
from manyhands.transport.shared.counters import LOOK, Counters, can_wait
from manyhands.transport.shared.layout import LINE, MOST_SETS, bounds_of, first_slot
from manyhands.transport.shared.memory import Foreign, Segment, can_share
from manyhands.wire.envelope import SharedBytes
from manyhands.wire.message import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from manyhands.engine import Store

_TOKEN = 16


class _Places(NamedTuple):
    """Where the numbers of a chunk are in shared memory."""

    turn: int
    """The set of slots."""
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
    begin: Callable[[torch.Tensor], Callable[[], object]]
    """Begins to replace a tensor by its sum over the workers of the same rank in each host; what it
    returns waits for the end."""


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
        self._notes = memory[LINE * (1 + size) :][: 8 * size * MOST_SETS].cast("d")
        """By set of slots and worker, the sum of the part of the mean that it computed last."""
        self._check = check
        self._factor = 1.0 / (size * (1 if between is None else between.hosts))
        sets = 2 if between is None else MOST_SETS
        self._slot = slot = (len(memory) - begin) // (sets * size) // LINE * LINE
        self._sets = [
            torch.frombuffer(memory[begin + each * size * slot :][: size * slot], dtype=torch.uint8)
            for each in range(sets)
        ]
        """Slots of all workers, in sets that are used in turn: what a slow worker still reads of
        one chunk must not be overwritten by the next, whose parts may begin elsewhere. Between
        hosts a third set holds the chunk that is under way meanwhile."""
        self._turn = 0
        self._known: dict[tuple[int, int, torch.dtype], _Places] = {}
        self.exchanged = [0] * size
        """Bytes that this worker has written for each other one, and as many read from it: the
        other one's part of its own tensor, and its part of the sum."""

    @property
    def received(self) -> list[int]:
        """Bytes that this worker has read of each other one: as many as it has written for it."""
        return self.exchanged

    def average(self, flat: torch.Tensor) -> bool:
        """Replace a contiguous vector, on every worker, by the mean over all workers.

        Returns:
            Whether all numbers of the mean are finite, the same on all workers. False also if the
            sum of finite numbers is too large for their type.

        Raises:
            PeerLost: `free` was called.
        """
        finite = True
        with self.raising():
            if self.between is not None:
                return self._average_hosts(flat, self.between)
            for chunk in self._chunks(flat):
                places = self._places(len(chunk), chunk.dtype)
                self._reduce(chunk, places)
                finite &= self._spread(chunk, places, self._factor)
        return finite

    def _average_hosts(self, flat: torch.Tensor, between: BetweenHosts) -> bool:
        """Average over several hosts: one chunk is between hosts while the next is summed here."""
        finite, under_way = True, None
        for chunk in self._chunks(flat):
            places = self._places(len(chunk), chunk.dtype)
            self._reduce(chunk, places)
            arrives = between.begin(places.sums[self.rank])
            if under_way is not None:
                finite &= self._arrived(*under_way)
            under_way = (arrives, chunk, places)
        if under_way is not None:
            finite &= self._arrived(*under_way)
        return finite

    def _arrived(self, arrives: Callable[[], object], chunk: torch.Tensor, places: _Places) -> bool:
        arrives()
        return self._spread(chunk, places, self._factor)

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Context of an exchange: raise PeerLost if `free` was called."""
        try:
            yield
        except InterruptedError:
            raise PeerLost(f"a sum of worker {self.rank} was given up") from None

    def _chunks(self, flat: torch.Tensor) -> Sequence[torch.Tensor]:
        """A vector in parts that fit into a slot."""
        most = self._slot // flat.element_size()
        return [flat] if len(flat) <= most else torch.split(flat, most)

    def _reduce(self, chunk: torch.Tensor, places: _Places) -> None:
        """Sum this worker's part of a chunk, in the order of ranks."""
        begin, end = places.bounds[self.rank], places.bounds[self.rank + 1]
        if begin:
            places.before.copy_(chunk[:begin])
        if end < len(chunk):
            places.behind.copy_(chunk[end:])
        self._meet()
        mine, total = chunk[begin:end], places.sums[self.rank]
        parts = [mine if part is None else part for part in places.parts]
        if len(parts) == 1:
            total.copy_(mine)
        else:
            torch.add(parts[0], parts[1], out=total)
        for more in parts[2:]:
            total.add_(more)

    def _spread(self, chunk: torch.Tensor, places: _Places, factor: float) -> bool:
        """Replace a chunk by the sums of all parts times a factor; return whether it is finite."""
        own, turn = self.rank, places.turn
        begin, end = places.bounds[own], places.bounds[own + 1]
        result = torch.mul(places.sums[own], factor, out=chunk[begin:end])
        # Before the meeting, after which the others read it.
        self._notes[turn * self.size + own] = float(result.sum())
        # Nobody writes into these slots again before all have raised their counters for the next
        # chunk, and they do that when they have read these sums.
        self._meet()
        for place, total in enumerate(places.sums):
            if place != own:
                first, last = places.bounds[place], places.bounds[place + 1]
                torch.mul(total, factor, out=chunk[first:last])
                self.exchanged[place] += (end - begin + last - first) * chunk.element_size()
        return math.isfinite(sum(self._notes[turn * self.size : (turn + 1) * self.size]))

    def _meet(self) -> None:
        """Wait until all workers have come as far as this one."""
        self._counters.wait_for_all(self._counters.advance(), self._check)

    def _next_turn(self) -> int:
        """The set of slots for the next chunk."""
        turn, self._turn = self._turn, (self._turn + 1) % len(self._sets)
        return turn

    def _places(self, length: int, dtype: torch.dtype) -> _Places:
        """Where a chunk of so many numbers is, in the slots whose turn it is."""
        key = (turn := self._next_turn(), length, dtype)
        if key not in self._known:
            slots = self._sets[turn].view(dtype).chunk(self.size)
            bounds = bounds_of(length, self.size)
            begin, end = bounds[self.rank], bounds[self.rank + 1]
            mine = slots[self.rank]
            self._known[key] = _Places(
                turn,
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


def agree(store: Store, rank: int, size: int, all_of: Callable[[bool], bool]) -> memoryview | None:
    """Map memory that workers share; None if not all of them can map the same.

    Args:
        store: shared by the workers, with keys of its own.
        rank: this worker's rank.
        size: bytes of memory; zeros, except for a token in its first line.
        all_of: whether something is true on all workers.
    """
    segment = None
    if rank == 0:
        if can_share() and can_wait():
            with contextlib.suppress(OSError):
                segment = Segment(size)
        token = secrets.token_bytes(_TOKEN)
        place = ""
        if segment is not None:
            segment.memory[:_TOKEN] = token
            place = f"{os.getpid()} {segment.descriptor} {token.hex()}"
        # Also if there is no memory: the others wait for this key.
        store.set("place", place or "nowhere")
    place = store.get("place").decode("ascii")
    memory = None
    if segment is not None:
        memory = segment.memory
    elif place != "nowhere" and can_wait():
        memory = _foreign(place, size)
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
