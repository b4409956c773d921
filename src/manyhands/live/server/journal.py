"""Write-ahead journal of a server, from which its successor continues.

A server's decisions are a pure function of the calls that it received, so it writes each call that
changes its state, update included, to the journal before it answers. A successor restores the last
snapshot and replays the calls since then. A new snapshot makes the calls before it obsolete, and
their slots in the log are reused.

The job's `durability` decides which failures the journal survives. Under `process` it is stored in
memory that outlives the server (`manyhands.live.server.journal_storage`), or in the page cache for
large models. Under `power` it is stored in a file that is synchronised before a call is answered;
calls that have arrived together share one synchronisation. Under `none` nothing is written.
"""

from __future__ import annotations

import struct
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from manyhands.live.server.journal_storage import ROOM
from manyhands.protocols import Call, ServerState
from manyhands.wire.protocol_messages import Said

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from manyhands.live.server.journal_storage import Log
    from manyhands.parameters import Holder

_SUM = struct.Struct("<I")
"""Checksum of the head and the body, written before both."""
_HEAD = struct.Struct("<QQQQII")
"""Generation, index, place, payload bytes, payload checksum, body bytes."""
_FIXED = _SUM.size + _HEAD.size
_ASIDE = 2 << 20
"""Bytes of an update from which on a separate thread copies it to the file."""


class _Body(msgspec.Struct, frozen=True, array_like=True):
    sender: str
    number: int
    message: Said
    room: bool


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Body)


@dataclass(frozen=True)
class JournaledCall:
    """A call that a predecessor executed."""

    call: Call
    payload: torch.Tensor


class Journal:
    """The journal of one server.

    Args:
        log: the storage.
        durable: whether calls must survive a power failure. Payloads have a checksum then, because
            their parts may reach the disk in any order.
    """

    def __init__(self, log: Log, *, durable: bool = False) -> None:
        self._log = log
        self._durable = durable
        self._entries = log.limit(0)
        self._generation = 0
        self._index = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._writing: Future[None] | None = None
        self._unsynced = False

    @property
    def batch(self) -> int:
        """How many calls are written together before they are executed."""
        return max(1, self._entries - self._index) if self._durable else 1

    def recover(
        self, holder: Holder, first: ServerState
    ) -> tuple[ServerState, dict[str, int], list[tuple[str, int]]]:
        """Restore the last snapshot, if there is one, into `holder`.

        Returns:
            The state (`first` if there is no snapshot), by caller the number of its last call, and
            the calls without an answer.
        """
        found = self._log.load()
        if found is None:
            return first, {}, []
        tensors, facts = found
        holder.restore(tensors, facts["optimizer"])
        self._generation = facts["generation"]
        state = msgspec.convert(facts["state"], type(first))
        return state, facts["done"], [(sender, number) for sender, number in facts["waiting"]]

    def replay(self) -> Iterator[JournaledCall]:
        """The calls since the snapshot, in order; new calls are appended after them."""
        while (entry := self._read(self._index)) is not None:
            self._index += 1
            yield entry

    def is_full(self, holder: Holder) -> bool:
        """Whether a snapshot is due before the next call can be written."""
        if self._index < self._entries:
            return self._log.is_crowded()
        self._entries = self._log.limit(holder.nbytes)
        return self._index >= self._entries

    def supply(self) -> memoryview:
        """A buffer to receive a payload into."""
        return self._log.supply()

    def append(self, call: Call, payload: memoryview) -> bool:
        """Start to write a call; its payload must not change until `settle`.

        Returns:
            Whether the journal keeps the payload in place: a buffer from `supply`, which then
            belongs to the journal until the next snapshot.
        """
        self._join()
        kept = self._log.keeps(payload)
        if len(payload) < _ASIDE or kept:
            self._append(call, payload)
        else:
            self._writing = self._thread.submit(self._append, call, payload)
        self._unsynced = True
        return kept

    def settle(self) -> None:
        """Wait until all calls are written: before that, none may be answered."""
        self._join()
        if self._durable and self._unsynced:
            self._log.sync()
        self._unsynced = False

    def _join(self) -> None:
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def _append(self, call: Call, payload: memoryview) -> None:
        """Write a call; its head, written last, makes it valid."""
        body = _encoder.encode(_Body(call.sender, call.number, call.message, call.room))
        if _FIXED + len(body) > ROOM:
            raise ValueError(
                f"a journaled call has at most {ROOM - _FIXED} bytes without its payload, "
                f"got {len(body)}"
            )
        place = self._log.put(self._index, payload)
        checksum = zlib.crc32(payload) if self._durable else 0
        head = _HEAD.pack(self._generation, self._index, place, len(payload), checksum, len(body))
        self._log.write_head(self._index, _SUM.pack(zlib.crc32(head + body)) + head + body)
        self._index += 1

    def snapshot(
        self,
        holder: Holder,
        state: ServerState,
        done: Mapping[str, int],
        waiting: Sequence[tuple[str, int]],
    ) -> None:
        """Write the state, and reuse the log from its start."""
        self.settle()
        tensors, scalars = holder.state()
        facts = {
            "generation": self._generation + 1,
            "state": msgspec.to_builtins(state),
            "done": dict(done),
            "waiting": list(waiting),
            "optimizer": scalars,
        }
        self._log.save(tensors, facts)
        self._generation += 1
        self._index = 0
        self._log.reuse()

    def _read(self, index: int) -> JournaledCall | None:
        head = self._log.read_head(index)
        if len(head) < _FIXED:
            return None
        (checksum,) = _SUM.unpack_from(head)
        generation, number, place, size, sum_, length = _HEAD.unpack_from(head, _SUM.size)
        if checksum != zlib.crc32(head[_SUM.size : _FIXED + length]):
            return None
        body = head[_FIXED : _FIXED + length]
        if (generation, number) != (self._generation, index):
            return None
        payload = self._log.read(place, size)
        if payload is None or (self._durable and zlib.crc32(payload.numpy().data) != sum_):
            return None
        read = _decoder.decode(body)
        return JournaledCall(Call(read.sender, read.number, read.message, room=read.room), payload)

    def close(self) -> None:
        """Release files and memory."""
        self._thread.shutdown()
        self._log.close()

    def remove(self) -> None:
        """Delete the journal, after a run that has finished."""
        self._log.remove()


class NoJournal(Journal):
    """A journal that stores nothing, for a server without a successor.

    Args:
        size: bytes of an update.
    """

    def __init__(self, size: int) -> None:
        self._size = size

    @property
    def batch(self) -> int:
        """Calls are executed one by one."""
        return 1

    def recover(
        self, holder: Holder, first: ServerState
    ) -> tuple[ServerState, dict[str, int], list[tuple[str, int]]]:
        """There is no snapshot."""
        del holder
        return first, {}, []

    def replay(self) -> Iterator[JournaledCall]:
        """There are no calls."""
        return iter(())

    def is_full(self, holder: Holder) -> bool:
        """Never."""
        del holder
        return False

    def supply(self) -> memoryview:
        """A buffer in private memory."""
        return memoryview(bytearray(self._size))

    def append(self, call: Call, payload: memoryview) -> bool:
        """Discard the call."""
        del call, payload
        return False

    def settle(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Nothing to release."""

    def remove(self) -> None:
        """Nothing to delete."""
