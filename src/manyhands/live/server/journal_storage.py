"""Storage of a server's journal: memory that outlives the server, or files in the run's folder.

A log has numbered heads, slots for payloads, and snapshots. The journal defines their content.

`MemoryLog` is stored in memory that belongs to the agent (a memfd). It survives the death of any
process except the agent, whose death ends the run. Payloads from a socket are received directly
into a slot of the log, so writing them takes no copy; payloads in a worker's shared memory are
copied once. Two snapshots are written in turn, so that one is always complete.

`FileLog` is stored in files, for models whose log is too large for memory, and where answered calls
must survive a power failure.
"""

from __future__ import annotations

import ctypes
import errno
import json
import math
import mmap
import os
import struct
import time
import zlib
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

from manyhands.files.checkpoint import StoredTensors, open_tensors, write_tensors
from manyhands.protocols.parts.recovery.server_journal import ROOM, JournalStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    T = TypeVar("T")

PORTION = 1 << 30
"""The most bytes in one write: Linux accepts at most 2 GiB − 4 KiB."""
_SPACE = 1 << 30
"""Bytes of calls that a file holds between two snapshots, or twice the state if that is more."""
_MOST = 256
"""The most calls between two snapshots."""

IN_MEMORY = 128 << 20
"""Bytes of parameters, on all servers of a host, up to which journals are stored in memory."""
_BUDGET = 512 << 20
"""Bytes of calls that the servers of a host keep in memory between two snapshots."""
_MOST_IN_MEMORY = 32
_LEAST_IN_MEMORY = 4
_ALIGNED = 4096
_SNAPSHOTS = (1 << 40, 1 << 41)
"""Offsets of the two snapshots. The memory is sparse: only written pages are allocated."""
_END = 1 << 42
_SNAPSHOT_HEAD = struct.Struct("<8sQQI")
"""A mark, the generation, the bytes of the facts, their checksum."""
_MARK = b"snapshot"

Snapshot = tuple[StoredTensors, str]
"""Tensors that are read one by one, and the facts."""


class Log(JournalStorage, Protocol):
    """Storage of a live server's journal."""

    def supply(self) -> memoryview:
        """A buffer to receive a payload into."""

    def keeps(self, payload: memoryview) -> bool:
        """Whether a payload is stored in the log already."""

    def sync(self) -> None:
        """Wait until everything written survives a power failure."""

    def close(self) -> None:
        """Release files and memory."""

    def remove(self) -> None:
        """Delete the log."""


class FileLog:
    """A log in two files: calls, and the last snapshot.

    Args:
        folder: the run's folder.
        name: the server's name.
        size: bytes of an update.
        durable: whether snapshots are synchronised to the disk.
        say: receives a message when the disk is full and writing waits.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        size: int,
        *,
        durable: bool = False,
        say: Callable[[str], object] = str,
    ) -> None:
        home = folder / "journal"
        home.mkdir(exist_ok=True)
        self._snapshot = home / f"{name}.safetensors"
        self._size = size
        self._stride = ROOM + size
        self._file = os.open(home / f"{name}.log", os.O_RDWR | os.O_CREAT, 0o600)
        self._durable = durable
        self._say = say

    def limit(self, state: int) -> int:
        """As many calls as make snapshots cost at most half as much as the calls."""
        return max(2, min(_MOST, max(_SPACE, 2 * state) // self._stride))

    def is_crowded(self) -> bool:
        """Never: every call has a slot."""
        return False

    def supply(self) -> memoryview:
        """A buffer in private memory."""
        return memoryview(bytearray(self._size))

    def keeps(self, payload: memoryview) -> bool:
        """Never: the payload must be copied to the file."""
        del payload
        return False

    def put(self, index: int, payload: memoryview) -> int:
        """Write the payload of a call."""
        self._write(payload, index * self._stride + ROOM)
        return index

    def write_head(self, index: int, head: bytes) -> None:
        """Write the head of a call."""
        self._write(memoryview(head), index * self._stride)

    def read_head(self, index: int) -> bytes:
        """Read the head of a call."""
        return os.pread(self._file, ROOM, index * self._stride)

    def read(self, place: int, size: int) -> torch.Tensor | None:
        """A payload, as a new tensor."""
        payload = torch.empty(size, dtype=torch.uint8)
        room, at = payload.numpy().data, place * self._stride + ROOM
        done = 0
        while done < size:
            count = os.preadv(self._file, [room[done : done + PORTION]], at + done)
            if count == 0:
                return None
            done += count
        return payload

    def save(self, tensors: Mapping[str, torch.Tensor], facts: str, generation: int) -> None:
        """Write a snapshot to a temporary file, then replace the last one."""
        del generation  # it is one of the facts
        about = {"server": facts}
        # It is written under another name and renamed: a server that is killed meanwhile leaves the
        # last snapshot as it was.
        self._until_there_is_room(
            lambda: write_tensors(self._snapshot, tensors, about, durable=self._durable)
        )

    def load(self) -> Snapshot | None:
        """The last snapshot. Its tensors are read before the next one is written."""
        if not self._snapshot.exists():
            return None
        tensors, metadata = open_tensors(self._snapshot)
        return tensors, metadata["server"]

    def reuse(self) -> None:
        """Nothing to free: every call overwrites the one with its index."""

    def sync(self) -> None:
        """Wait for the disk."""
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def remove(self) -> None:
        """Delete the files, after a run that has finished."""
        for path in (self._snapshot, self._snapshot.with_suffix(".log")):
            path.unlink(missing_ok=True)

    def _write(self, data: memoryview, at: int) -> None:
        """Write all of the data: one system call may write less."""
        done = 0
        while done < len(data):
            some = data[done : done + PORTION]
            done += self._until_there_is_room(
                lambda some=some, at=at + done: os.pwrite(self._file, some, at)  # type: ignore[misc]
            )

    def _until_there_is_room(self, write: Callable[[], T]) -> T:
        """Write, and retry while the disk is full: training waits instead of failing."""
        waited = False
        while True:
            try:
                result = write()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                if not waited:
                    self._say(
                        f"{self._snapshot.parent} cannot be written: {error.strerror}. The server "
                        "waits until there is space"
                    )
                waited = True
                time.sleep(_PAUSE)
            else:
                if waited:
                    self._say(f"{self._snapshot.parent} can be written again")
                return result


_PAUSE = 0.5
"""Seconds between attempts to write to a full disk."""


class MemoryLog:
    """A log in memory that another process owns.

    Args:
        pid: the process that owns the memory.
        descriptor: descriptor of the memory in that process.
        size: bytes of an update.
        servers: number of servers of this host with such logs.
        spare: slots for payloads being received, in addition to those of written calls.

    Raises:
        OSError: the memory cannot be opened or mapped.
    """

    def __init__(self, pid: int, descriptor: int, size: int, servers: int, spare: int) -> None:
        self._size = size
        self._stride = -(-size // _ALIGNED) * _ALIGNED
        fit = _BUDGET // max(1, servers * self._stride)
        self._kept = max(_LEAST_IN_MEMORY, min(_MOST_IN_MEMORY, fit))
        self._file = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(self._file, _END)
            self._begin = _MOST * ROOM
            self._places = self._kept + spare
            size = self._begin + self._places * self._stride
            self._memory = memoryview(self._map(0, size))
        except OSError:
            os.close(self._file)
            raise
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) + self._begin
        self._free = list(range(self._places))
        self._used: list[int] = []
        """Slots of the calls since the last snapshot."""
        self._areas: dict[int, mmap.mmap] = {}
        self._next = 0

    def _map(self, at: int, size: int) -> mmap.mmap:
        return mmap.mmap(self._file, size, offset=at)

    def _view(self, place: int, size: int) -> memoryview:
        at = self._begin + place * self._stride
        return self._memory[at : at + size]

    def _place(self, payload: memoryview) -> int | None:
        """The slot in which a payload is stored; None if it is stored elsewhere."""
        if payload.readonly or not len(payload):
            return None
        at = ctypes.addressof(ctypes.c_char.from_buffer(payload)) - self._address
        place, rest = divmod(at, self._stride)
        return place if rest == 0 and 0 <= place < self._places else None

    def limit(self, state: int) -> int:
        """As many as there are heads for."""
        del state
        return _MOST

    def is_crowded(self) -> bool:
        """Whether only the spare slots are left, which payloads being received need."""
        return len(self._used) >= self._kept

    def supply(self) -> memoryview:
        """A slot of the log, in which a payload can stay when its call is written."""
        return self._view(self._free.pop(), self._size)

    def keeps(self, payload: memoryview) -> bool:
        """Whether the payload was received into a slot of the log."""
        return self._place(payload) is not None

    def put(self, index: int, payload: memoryview) -> int:
        """Keep the payload in its slot, or copy it to a free one."""
        del index
        if not len(payload):
            return 0
        place = self._place(payload)
        if place is None:
            place = self._free.pop()
            self._view(place, len(payload))[:] = payload
        self._used.append(place)
        return place

    def write_head(self, index: int, head: bytes) -> None:
        """Write the head of a call."""
        self._memory[index * ROOM : index * ROOM + len(head)] = head

    def read_head(self, index: int) -> bytes:
        """Read the head of a call; empty after the last one."""
        return bytes(self._memory[index * ROOM : (index + 1) * ROOM]) if index < _MOST else b""

    def read(self, place: int, size: int) -> torch.Tensor | None:
        """A payload, in place; its slot is reused after the next snapshot."""
        if not size:
            return torch.empty(0, dtype=torch.uint8)
        if place not in self._free or size > self._size:
            return None
        # The call stays in the journal until the next snapshot: if its slot were given to a payload
        # that is received now, a second successor would replay other bytes.
        self._free.remove(place)
        self._used.append(place)
        return torch.frombuffer(self._view(place, size), dtype=torch.uint8)

    def save(self, tensors: Mapping[str, torch.Tensor], facts: str, generation: int) -> None:
        """Overwrite the older of the two snapshots; its head, written last, makes it valid."""
        directory, at = {}, 0
        for name, tensor in tensors.items():
            directory[name] = (str(tensor.dtype).removeprefix("torch."), list(tensor.shape), at)
            at += -(-tensor.nbytes // 64) * 64
        text = json.dumps([directory, facts]).encode()
        begin = -(-(_SNAPSHOT_HEAD.size + len(text)) // _ALIGNED) * _ALIGNED
        area = self._area(self._next, begin + at)
        # The old head goes first. A server that is killed while it copies would otherwise leave a
        # valid head above the tensors of two snapshots.
        area[: _SNAPSHOT_HEAD.size] = bytes(_SNAPSHOT_HEAD.size)
        area[_SNAPSHOT_HEAD.size : _SNAPSHOT_HEAD.size + len(text)] = text
        flat = torch.frombuffer(area, dtype=torch.uint8)
        for name, tensor in tensors.items():
            if tensor.nbytes:
                start = begin + directory[name][2]
                source = tensor.detach().reshape(-1).view(torch.uint8)
                flat[start : start + tensor.nbytes].copy_(source)
        head = (_MARK, generation, len(text), zlib.crc32(text))
        # Last: until it is there, a successor takes the other snapshot.
        area[: _SNAPSHOT_HEAD.size] = _SNAPSHOT_HEAD.pack(*head)
        self._next = 1 - self._next

    def _area(self, number: int, size: int) -> mmap.mmap:
        """The memory of a snapshot, mapped again if it must be larger."""
        area = self._areas.get(number)
        if area is None or len(area) < size:
            area = self._areas[number] = self._map(_SNAPSHOTS[number], size)
        return area

    def load(self) -> Snapshot | None:
        """The last complete snapshot, copied to private memory."""
        found: list[tuple[int, int, int]] = []
        for number in range(len(_SNAPSHOTS)):
            head = self._area(number, _ALIGNED)[: _SNAPSHOT_HEAD.size]
            mark, generation, length, checksum = _SNAPSHOT_HEAD.unpack(head)
            if mark == _MARK:
                text = self._text(number, length)
                if zlib.crc32(text) == checksum:
                    found.append((generation, number, length))
        if not found:
            return None
        _, number, length = max(found)
        # The next snapshot overwrites the older one, so that one is complete at any moment.
        self._next = 1 - number
        directory, facts = json.loads(self._text(number, length))
        begin = -(-(_SNAPSHOT_HEAD.size + length) // _ALIGNED) * _ALIGNED
        readers = {
            name: partial(self._copy, number, getattr(torch, dtype), shape, begin + at)
            for name, (dtype, shape, at) in directory.items()
        }
        return StoredTensors(readers), facts

    def _copy(self, number: int, dtype: torch.dtype, shape: list[int], at: int) -> torch.Tensor:
        """A tensor of a snapshot."""
        count = math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        area = self._area(number, at + count * dtype.itemsize)
        return torch.frombuffer(area, dtype=dtype, count=count, offset=at).reshape(shape).clone()

    def _text(self, number: int, length: int) -> bytes:
        area = self._area(number, _SNAPSHOT_HEAD.size + length)
        return area[_SNAPSHOT_HEAD.size : _SNAPSHOT_HEAD.size + length]

    def reuse(self) -> None:
        """Free the slots of all calls."""
        self._free += self._used
        self._used = []

    def sync(self) -> None:
        """Not supported: memory does not survive a power failure."""
        raise NotImplementedError("a log in memory cannot survive a power failure")

    def close(self) -> None:
        """Close the descriptor; the memory exists as long as its owner."""
        os.close(self._file)

    def remove(self) -> None:
        """Nothing to delete: the memory is freed with the process that owns it."""
