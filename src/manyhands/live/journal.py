"""What a server has done, on disk, so that its successor continues where it was killed.

A server's decisions are a pure function of the calls it heard, so it writes down each call that
changes its state, update included, before it carries it out. A successor takes the last snapshot
and hears the calls since then again. Every `entries` calls a new snapshot makes the older ones
superfluous and their place in the file is used again.

Writing goes to the page cache: it survives the death of the process, not of the machine. It costs
one copy of each update, and one of the state per `entries` updates. A large update is written down
beside the step that it is used for; only the answer waits for both.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import torch

from manyhands.checkpoint import read_tensors, write_tensors
from manyhands.protocols import Call, ServerState
from manyhands.wire.said import Said

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from manyhands.parameters import Holder

_HEAD = struct.Struct("<QQQII")
"""Generation, index, payload bytes, body bytes, checksum of all these and the body."""
_ROOM = 512
_SPACE = 1 << 30
"""Bytes that the calls between two snapshots may take, at least two of them."""
_ASIDE = 2 << 20
"""Bytes from which on an update is written down by a thread of its own."""


class _Body(msgspec.Struct, frozen=True, array_like=True):
    sender: str
    number: int
    message: Said


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
        folder: the run's.
        name: the server's.
        size: bytes of an update.
    """

    def __init__(self, folder: Path, name: str, size: int) -> None:
        home = folder / "journal"
        home.mkdir(exist_ok=True)
        self._snapshot = home / f"{name}.safetensors"
        self._stride = _ROOM + size
        self.entries = max(2, min(256, _SPACE // self._stride))
        self._log = os.open(home / f"{name}.log", os.O_RDWR | os.O_CREAT, 0o600)
        self._generation = 0
        self._index = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._writing: Future[None] | None = None

    def recover(
        self, holder: Holder, first: ServerState
    ) -> tuple[ServerState, dict[str, int], list[tuple[str, int]]]:
        """Put the last snapshot, if there is one, into `holder`.

        Returns:
            The state (`first` if there is no snapshot), by caller the number of the last call
            that was heard, and the calls that were still to be answered.
        """
        if not self._snapshot.exists():
            return first, {}, []
        tensors, metadata = read_tensors(self._snapshot)
        facts = json.loads(metadata["server"])
        holder.restore(tensors, facts["optimizer"])
        self._generation = facts["generation"]
        state = msgspec.convert(facts["state"], type(first))
        return state, facts["done"], [(sender, number) for sender, number in facts["waiting"]]

    def heard(self) -> Iterator[Heard]:
        """The calls since the snapshot, in order; new ones are appended behind them."""
        while (entry := self._read(self._index)) is not None:
            self._index += 1
            yield entry

    def is_full(self) -> bool:
        """Whether a snapshot is due before the next call is written down."""
        return self._index >= self.entries

    def append(self, call: Call, payload: memoryview) -> None:
        """Begin to write a call down; its payload must stay as it is until `settle`."""
        self.settle()
        if len(payload) < _ASIDE:
            self._append(call, payload)
        else:
            self._writing = self._thread.submit(self._append, call, payload)

    def settle(self) -> None:
        """Wait until all is written down: before that, nothing may be answered."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def _append(self, call: Call, payload: memoryview) -> None:
        """A call counts from the moment its head is written, which comes last."""
        at = self._index * self._stride
        os.pwrite(self._log, payload, at + _ROOM)
        body = _encoder.encode(_Body(call.sender, call.number, call.message))
        facts = (self._generation, self._index, len(payload), len(body))
        head = _HEAD.pack(*facts, _checksum(facts, body))
        if len(head) + len(body) > _ROOM:
            raise ValueError(f"a call of {len(body)} bytes does not fit into the journal")
        os.pwrite(self._log, head + body, at)
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
        write_tensors(self._snapshot, tensors, {"server": json.dumps(facts)})
        self._generation += 1
        self._index = 0

    def _read(self, index: int) -> Heard | None:
        at = index * self._stride
        head = os.pread(self._log, _ROOM, at)
        if len(head) < _HEAD.size:
            return None
        generation, number, size, length, checksum = _HEAD.unpack_from(head)
        body = head[_HEAD.size : _HEAD.size + length]
        facts = (generation, number, size, length)
        if checksum != _checksum(facts, body) or (generation, number) != (self._generation, index):
            return None
        payload = torch.empty(size, dtype=torch.uint8)
        if size and os.preadv(self._log, [payload.numpy().data], at + _ROOM) != size:
            return None
        said = _decoder.decode(body)
        return Heard(Call(said.sender, said.number, said.message), payload)

    def close(self) -> None:
        """Let go of the file."""
        self._thread.shutdown()
        os.close(self._log)

    def remove(self) -> None:
        """A run that ended well needs no journal."""
        for path in (self._snapshot, self._snapshot.with_suffix(".log")):
            path.unlink(missing_ok=True)


class NoJournal(Journal):
    """Nothing is written down, for a server that nobody can continue."""

    def __init__(self, folder: Path, name: str, size: int) -> None:
        del folder, name, size

    def recover(
        self, holder: Holder, first: ServerState
    ) -> tuple[ServerState, dict[str, int], list[tuple[str, int]]]:
        """There is nothing."""
        del holder
        return first, {}, []

    def heard(self) -> Iterator[Heard]:
        """Nothing."""
        return iter(())

    def is_full(self) -> bool:
        """Never."""
        return False

    def append(self, call: Call, payload: memoryview) -> None:
        """Forget it."""

    def settle(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Nothing is open."""

    def remove(self) -> None:
        """Nothing is there."""


def _checksum(facts: tuple[int, int, int, int], body: bytes) -> int:
    return zlib.crc32(repr(facts).encode() + body)
