"""Write-ahead journal of a server, from which its successor continues.

A server's decisions are a pure function of the calls it heard, so it writes down each call that
changes its state, update included, before it answers. A successor takes the last snapshot and hears
the calls since then again. A new snapshot makes the calls before it superfluous, and their places
in the log are used again.

How much survives is the job's `durability`. Under `process` the journal lies in memory that
outlives the server (`manyhands.live.server.journal_storage`), or in the page cache for large
models. Under `power` it lies in a file that is synchronised before a call is answered; calls that
have arrived together share one synchronisation. Under `none` nothing is written.
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
"""Checksum of the head and the body, before both."""
_HEAD = struct.Struct("<QQQQII")
"""Generation, index, place, payload bytes, payload checksum, body bytes."""
_FIXED = _SUM.size + _HEAD.size
_ASIDE = 2 << 20
"""Bytes from which on an update is copied into a file by a thread of its own."""


class _Body(msgspec.Struct, frozen=True, array_like=True):
    sender: str
    number: int
    message: Said
    room: bool


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Body)


@dataclass(frozen=True)
class Heard:
    """A call that a predecessor carried out."""

    call: Call
    payload: torch.Tensor


class Journal:
    """The journal of one server.

    Args:
        log: where it lies.
        durable: whether calls must survive a loss of power. Payloads have a checksum then, because
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
        """How many calls are written down together before they are carried out."""
        return max(1, self._entries - self._index) if self._durable else 1

    def recover(
        self, holder: Holder, first: ServerState
    ) -> tuple[ServerState, dict[str, int], list[tuple[str, int]]]:
        """Put the last snapshot, if there is one, into `holder`.

        Returns:
            The state (`first` if there is no snapshot), by caller the number of the last call
            that was heard, and the calls that were still to be answered.
        """
        found = self._log.load()
        if found is None:
            return first, {}, []
        tensors, facts = found
        holder.restore(tensors, facts["optimizer"])
        self._generation = facts["generation"]
        state = msgspec.convert(facts["state"], type(first))
        return state, facts["done"], [(sender, number) for sender, number in facts["waiting"]]

    def heard(self) -> Iterator[Heard]:
        """The calls since the snapshot, in order; new ones are appended behind them."""
        while (entry := self._read(self._index)) is not None:
            self._index += 1
            yield entry

    def is_full(self, holder: Holder) -> bool:
        """Whether a snapshot is due before the next call is written down."""
        if self._index < self._entries:
            return self._log.is_crowded()
        self._entries = self._log.limit(holder.nbytes)
        return self._index >= self._entries

    def supply(self) -> memoryview:
        """Memory for a payload that is received."""
        return self._log.supply()

    def append(self, call: Call, payload: memoryview) -> bool:
        """Begin to write a call down; its payload must stay as it is until `settle`.

        Returns:
            Whether the journal keeps the payload where it lies: memory from `supply`, which is
            then the journal's until the next snapshot.
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
        """Wait until all is written down: before that, nothing may be answered."""
        self._join()
        if self._durable and self._unsynced:
            self._log.sync()
        self._unsynced = False

    def _join(self) -> None:
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def _append(self, call: Call, payload: memoryview) -> None:
        """A call counts from the moment its head is written, which comes last."""
        body = _encoder.encode(_Body(call.sender, call.number, call.message, call.room))
        if _FIXED + len(body) > ROOM:
            raise ValueError(f"a call of {len(body)} bytes does not fit into the journal")
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
        """Write the state, and begin to use the log again."""
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

    def _read(self, index: int) -> Heard | None:
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
        said = _decoder.decode(body)
        return Heard(Call(said.sender, said.number, said.message, room=said.room), payload)

    def close(self) -> None:
        """Release what is open."""
        self._thread.shutdown()
        self._log.close()

    def remove(self) -> None:
        """A run that ended well needs no journal."""
        self._log.remove()


class NoJournal(Journal):
    """Nothing is written down, for a server without a successor.

    Args:
        size: bytes of an update.
    """

    def __init__(self, size: int) -> None:
        self._size = size

    @property
    def batch(self) -> int:
        """Calls are carried out one by one."""
        return 1

    def recover(
        self, holder: Holder, first: ServerState
    ) -> tuple[ServerState, dict[str, int], list[tuple[str, int]]]:
        """There is nothing."""
        del holder
        return first, {}, []

    def heard(self) -> Iterator[Heard]:
        """Nothing."""
        return iter(())

    def is_full(self, holder: Holder) -> bool:
        """Never."""
        del holder
        return False

    def supply(self) -> memoryview:
        """Memory of this process."""
        return memoryview(bytearray(self._size))

    def append(self, call: Call, payload: memoryview) -> bool:
        """Forget it."""
        del call, payload
        return False

    def settle(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Nothing is open."""

    def remove(self) -> None:
        """Nothing is there."""
