"""Tensors that workers of one host send to each other, in memory that they share.

Each worker has a ring of memory for every other one, into which it writes tensors one behind the
other, each with its tag; the other one reads them in that order. One that comes before it is asked
for is kept aside. A tensor for which there is no room yet is written later: whenever the sender
sends or waits again. So two workers that wait for each other do not block each other.

    line 0                  token
    2 lines for each pair   how far the sender has written, and how far the receiver has read
    rings                   header | tensor | header | tensor | …
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections import deque
from typing import TYPE_CHECKING, Protocol

import torch

from manyhands.failure import PeerLost
from manyhands.transport.shared.counters import RANGE, Words
from manyhands.transport.shared.layout import LINE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RING = 4 * 1024 * 1024
"""Bytes of a ring."""
LARGEST = RING // 4
"""Bytes of the largest tensor that is sent in memory."""
_LINES = RING // LINE
_HEADER = struct.Struct("<qQ")
"""A tag and a number of bytes."""
_SKIP = -1
"""The tag of a header behind which there is no tensor: the next one is at the ring's begin."""


class Sending(Protocol):
    """A tensor that is on its way."""

    def wait(self) -> object:
        """Wait until it is sent or received."""


def posts_room(size: int) -> int:
    """Bytes of memory for the rings of so many workers; only those in use take any."""
    return _first_ring(size) + size * size * RING


def pipeline_room(workers: int) -> int:
    """The most bytes that rings of a pipeline of so many workers take.

    Each sends to both of its neighbours, and the last one to all.

    >>> pipeline_room(1), pipeline_room(2) // RING, pipeline_room(4) // RING
    (0, 2, 9)
    """
    return RING * max(0, min(workers * (workers - 1), 3 * (workers - 1)))


def _first_ring(size: int) -> int:
    heads = LINE * (1 + 2 * size * size)
    return -(-heads // mmap.PAGESIZE) * mmap.PAGESIZE


class SharedPosts:
    """Sends tensors to other workers of a host, and receives theirs.

    Args:
        memory: of `posts_room` bytes, the same for all workers, zeros at first.
        rank: this worker's rank.
        size: number of workers.
        check: raises PeerLost if the worker of a rank is lost; called while this one waits for it.
    """

    def __init__(
        self, memory: memoryview, rank: int, size: int, check: Callable[[int], object]
    ) -> None:
        self.rank = rank
        self._words = Words(memory[LINE : LINE * (1 + 2 * size * size)], size)
        self._check = check
        first = _first_ring(size)

        def ring(sender: int, receiver: int) -> _Ring:
            pair = sender * size + receiver
            place = memory[first + pair * RING :][:RING]
            return _Ring(place, self._words, 2 * pair, 2 * pair + 1)

        others = [each for each in range(size) if each != rank]
        self._outgoing = {each: _Outgoing(ring(rank, each)) for each in others}
        self._incoming = {each: _Incoming(ring(each, rank)) for each in others}
        self.exchanged = [0] * size
        """Bytes that this worker has sent to each other one."""
        self.received = [0] * size
        """Bytes that it has received from each other one."""

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Sending:
        """Send a contiguous tensor, which must not change until it is sent."""
        self.exchanged[to] += tensor.nbytes
        outgoing = self._outgoing[to]
        outgoing.waiting.append((tag, _flat(tensor)))
        outgoing.write()
        return _Sent(self, to)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Sending:
        """What fills a contiguous tensor, when it is waited for."""
        return _Coming(self, tensor, source, tag)

    def take(self, tensor: torch.Tensor, source: int, tag: int) -> None:
        """Wait for a tensor with this tag from the source, and fill another with its numbers."""
        incoming = self._incoming[source]

        def meanwhile() -> None:
            # What this worker has to send is written while it waits: two workers that wait for each
            # other's tensors would wait for ever.
            self._write()
            try:
                self._check(source)
            except PeerLost:
                # It may have ended after it had sent everything.
                if not incoming.ring.has_more():
                    raise

        with self._raising():
            while not incoming.take(tag, _flat(tensor)):
                self._words.wait(incoming.ring.written, incoming.ring.has_more, meanwhile)
        self.received[source] += tensor.nbytes

    def flush(self, to: int) -> None:
        """Wait until all tensors for a worker are written."""
        outgoing = self._outgoing[to]

        def meanwhile() -> None:
            self._write()
            self._check(to)

        with self._raising():
            while outgoing.waiting:
                # What is read makes room.
                seen = self._words.read(outgoing.ring.taken)
                outgoing.write()
                if outgoing.waiting:
                    self._words.wait(
                        outgoing.ring.taken,
                        lambda: self._words.read(outgoing.ring.taken) != seen,  # noqa: B023 - called at once
                        meanwhile,
                    )

    def _write(self) -> None:
        """Write what there is room for now."""
        for outgoing in self._outgoing.values():
            outgoing.write()

    @contextlib.contextmanager
    def _raising(self) -> Iterator[None]:
        try:
            yield
        except InterruptedError:
            raise PeerLost(f"a transfer of worker {self.rank} was given up") from None

    def free(self) -> None:
        """Unblock this worker's caller, which raises. Thread-safe."""
        self._words.free()


class _Ring:
    """The memory from one worker to another: a place in it is counted in lines, from the start.

    Args:
        memory: the ring.
        words: where the two workers say how far they are.
        written: the place of the sender's word.
        taken: the place of the receiver's.
    """

    def __init__(self, memory: memoryview, words: Words, written: int, taken: int) -> None:
        self.memory = memory
        self.words = words
        self.written, self.taken = written, taken
        self.numbers = torch.frombuffer(memory, dtype=torch.uint8)
        self.place = 0
        """How far this worker has written, or read."""

    def begin(self) -> int:
        """The byte of the ring at this worker's place."""
        return self.place % _LINES * LINE

    def move(self, lines: int) -> None:
        """Go further."""
        self.place = (self.place + lines) % RANGE

    def has_more(self) -> bool:
        """Whether the sender is ahead of this worker, which reads."""
        return self.words.read(self.written) != self.place

    def room(self) -> int:
        """Lines that this worker, which writes, may write before the receiver has read more."""
        return _LINES - (self.place - self.words.read(self.taken)) % RANGE


class _Outgoing:
    """What is to be sent to one worker."""

    def __init__(self, ring: _Ring) -> None:
        self.ring = ring
        self.waiting: deque[tuple[int, torch.Tensor]] = deque()

    def write(self) -> None:
        """Write as many tensors as there is room for."""
        ring = self.ring
        before = ring.place
        while self.waiting:
            tag, tensor = self.waiting[0]
            lines = 1 + -(-len(tensor) // LINE)
            rest = _LINES - ring.place % _LINES
            if ring.room() < lines + (rest if rest < lines else 0):
                break
            if rest < lines:
                _HEADER.pack_into(ring.memory, ring.begin(), _SKIP, 0)
                ring.move(rest)
            begin = ring.begin()
            _HEADER.pack_into(ring.memory, begin, tag, len(tensor))
            ring.numbers[begin + LINE : begin + LINE + len(tensor)].copy_(tensor)
            ring.move(lines)
            self.waiting.popleft()
        # After the tensors are in the ring: the receiver reads all that lies before this number.
        if ring.place != before:
            ring.words.store(ring.written, ring.place)


class _Incoming:
    """What comes from one worker."""

    def __init__(self, ring: _Ring) -> None:
        self.ring = ring
        self._aside: dict[int, deque[torch.Tensor]] = {}

    def take(self, tag: int, into: torch.Tensor) -> bool:
        """Fill a tensor with the next one that has a tag; return whether it is there."""
        # Those that were kept aside are earlier than all with this tag in the ring.
        kept = self._aside.get(tag)
        if kept:
            into.copy_(kept.popleft())
            return True
        ring = self.ring
        while ring.has_more():
            begin = ring.begin()
            found, size = _HEADER.unpack_from(ring.memory, begin)
            if found == _SKIP:
                ring.move(_LINES - ring.place % _LINES)
                continue
            tensor = ring.numbers[begin + LINE : begin + LINE + size]
            if found == tag:
                into.copy_(tensor)
            else:
                # A copy: its place in the ring is given back below.
                self._aside.setdefault(found, deque()).append(tensor.clone())
            ring.move(1 + -(-size // LINE))
            # Only when the tensor is copied: the sender writes over it from here on.
            ring.words.store(ring.taken, ring.place)
            if found == tag:
                return True
        return False


class _Sent:
    """A tensor that is written, or waits for room."""

    def __init__(self, posts: SharedPosts, to: int) -> None:
        self._posts, self._to = posts, to

    def wait(self) -> None:
        """Wait until it is written."""
        self._posts.flush(self._to)


class _Coming:
    """A tensor that is asked for."""

    def __init__(self, posts: SharedPosts, tensor: torch.Tensor, source: int, tag: int) -> None:
        self._posts = posts
        self._wanted: tuple[torch.Tensor, int, int] | None = (tensor, source, tag)

    def wait(self) -> None:
        """Wait for it, and fill the tensor."""
        if self._wanted is not None:
            self._posts.take(*self._wanted)
            self._wanted = None


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor."""
    return tensor.detach().view(-1).view(torch.uint8)
