"""Write-ahead journal of a server, from which its successor continues.

A server's decisions are a pure function of the calls that it received, so it writes each call that
changes its state, update included, to the journal before it answers. A successor restores the last
snapshot and replays the calls since then. A new snapshot makes the calls before it obsolete, and
their slots in the log are reused.

Live and virtual servers write the same bytes: what cannot be restored from them fails in
simulations, too.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from manyhands.protocols.actions import Call
from manyhands.protocols.parts.recovery.encoded_state import plain_state, read_state
from manyhands.wire.protocol_messages import Said

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from manyhands.parameters import Holder
    from manyhands.protocols.protocol import ServerState

ROOM: Final = 512
"""Bytes of a head."""
_SUM = struct.Struct("<I")
"""Checksum of the head and the body, written before both."""
_HEAD = struct.Struct("<QQQQII")
"""Generation, index, place, payload bytes, payload checksum, body bytes."""
_FIXED = _SUM.size + _HEAD.size


class _Body(msgspec.Struct, frozen=True, array_like=True):
    sender: str
    number: int
    message: Said
    room: bool


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Body)


class JournalStorage(Protocol):
    """Storage of one server's journal: numbered heads, slots for payloads, and snapshots."""

    def limit(self, state: int) -> int:
        """How many calls there may be between two snapshots of `state` bytes."""

    def is_crowded(self) -> bool:
        """Whether there is no slot for another payload before the next snapshot."""

    def put(self, index: int, payload: memoryview) -> int:
        """Write the payload of a call; return the number of its slot."""

    def write_head(self, index: int, head: bytes) -> None:
        """Write the head of a call, at most `ROOM` bytes."""

    def read_head(self, index: int) -> bytes:
        """The head of a call, possibly followed by other bytes."""

    def read(self, place: int, size: int) -> torch.Tensor | None:
        """The payload in a slot that a predecessor wrote; None if it is missing."""

    def save(self, tensors: Mapping[str, torch.Tensor], facts: str, generation: int) -> None:
        """Write a snapshot. The previous one is kept until this one is complete."""

    def load(self) -> tuple[Mapping[str, torch.Tensor], str] | None:
        """The last snapshot; None if there is none."""

    def reuse(self) -> None:
        """Free the slots of all calls so far."""


@dataclass(frozen=True)
class JournaledCall:
    """A call that a predecessor executed."""

    call: Call
    payload: torch.Tensor


class ServerJournal:
    """The journal of one server.

    Args:
        log: the storage.
        durable: whether calls must survive a power failure. Payloads have a checksum then, because
            their parts may reach the disk in any order.
    """

    def __init__(self, log: JournalStorage, *, durable: bool = False) -> None:
        self._log = log
        self._durable = durable
        self._entries = log.limit(0)
        self._generation = 0
        self._index = 0

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
        tensors, text = found
        facts: dict[str, Any] = json.loads(text)
        holder.restore(tensors, facts["optimizer"])
        self._generation = facts["generation"]
        state = read_state(facts["state"], type(first))
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

    def write(self, call: Call, payload: memoryview) -> None:
        """Write a call; its head, written last, makes it valid."""
        body = _encoder.encode(_Body(call.sender, call.number, call.message, call.room))
        if _FIXED + len(body) > ROOM:
            raise ValueError(
                f"a journaled call has at most {ROOM - _FIXED} bytes without its payload, "
                f"got {len(body)}"
            )
        # Before the head, which makes the call valid: a server that is killed in between has not
        # received it.
        place = self._log.put(self._index, payload)
        checksum = zlib.crc32(payload) if self._durable else 0
        head = _HEAD.pack(self._generation, self._index, place, len(payload), checksum, len(body))
        self._log.write_head(self._index, _SUM.pack(zlib.crc32(head + body)) + head + body)
        self._index += 1

    def settle(self) -> None:
        """Wait until all calls are written; here they are, when `write` returns."""

    def snapshot(
        self,
        holder: Holder,
        state: ServerState,
        done: Mapping[str, int],
        waiting: Sequence[tuple[str, int]],
    ) -> None:
        """Write the state, and reuse the log from its start."""
        # A call that a thread wrote after this line would be replayed on top of a snapshot that has
        # it already.
        self.settle()
        tensors, scalars = holder.state()
        facts = {
            "generation": self._generation + 1,
            "state": plain_state(state),
            "done": dict(done),
            "waiting": list(waiting),
            "optimizer": scalars,
        }
        # With the next number, which the heads of the present calls do not have: a server that is
        # killed after this line replays none of them on top of the snapshot.
        self._log.save(tensors, json.dumps(facts), self._generation + 1)
        self._generation += 1
        self._index = 0
        # Last: until the snapshot is complete, a successor needs the calls of before.
        self._log.reuse()

    def _read(self, index: int) -> JournaledCall | None:
        head = self._log.read_head(index)
        if len(head) < _FIXED:
            return None
        (checksum,) = _SUM.unpack_from(head)
        generation, number, place, size, sum_, length = _HEAD.unpack_from(head, _SUM.size)
        # The predecessor was killed while it wrote this head; the call was not answered, so its
        # sender repeats it.
        if checksum != zlib.crc32(head[_SUM.size : _FIXED + length]):
            return None
        body = head[_FIXED : _FIXED + length]
        # A head of before the snapshot: the log is used again from its start, and what it leads to
        # is in the snapshot.
        if (generation, number) != (self._generation, index):
            return None
        payload = self._log.read(place, size)
        if payload is None or (self._durable and zlib.crc32(payload.numpy().data) != sum_):
            return None
        read = _decoder.decode(body)
        return JournaledCall(Call(read.sender, read.number, read.message, room=read.room), payload)
