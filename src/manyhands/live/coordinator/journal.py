"""Journal of the coordinator, from which its successor continues after it was killed.

The coordinator's decisions depend on the messages that it received, in their order, and on a few
that its clock makes. It writes both to the journal before they take effect; a successor replays
them, without sending anything, and has the same members, leases and reliable channels. Heartbeats
and traces are not written: they come again, or a gap in them does no harm.

Messages about members are kept for the whole run, because there are few. Those about leases are
replaced by a snapshot of the lease service after some thousands.

The journal is stored in memory that the agent holds, or in files of its private folder where the
system does not support that. So it survives the coordinator, and ends with the agent.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from manyhands.leasing.journal import InputJournal
from manyhands.leasing.lease_service import LeaseServiceState
from manyhands.leasing.regrouping import RegroupingState  # noqa: TC001 - decoded by its type
from manyhands.transport.reliable_channel import ChannelState
from manyhands.wire import Control, Goodbye, Hello
from manyhands.wire.joining import Disband, Knock, Withdraw
from manyhands.wire.leasing import Lost, Word
from manyhands.wire.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from manyhands.leasing.journal import Areas
    from manyhands.live.assignment import Assignment

_READ = 1 << 20


class LiveLeaseState(msgspec.Struct, frozen=True):
    """The state of a `LiveLeaseService`; its times are those of the host's monotonic clock."""

    service: LeaseServiceState
    begun: float | None
    stopped: bool
    evaluations: int
    evaluated_at: float
    stored_at: float
    epochs: int
    accounted: tuple[int, int, int]
    least: dict[str, int]
    channels: dict[str, ChannelState]


class Listening(Message, frozen=True):
    """The coordinator listens at this address for other hosts; empty if there are none."""

    outside: str


class HostLost(Message, frozen=True):
    """The host of an agent sent no heartbeat for too long."""

    agent: str
    words: str


class TimeIsUp(Message, frozen=True):
    """The time limit of the run is reached."""


class EvaluationDue(Message, frozen=True):
    """The interval until the next evaluation is over."""


class StoringDue(Message, frozen=True):
    """A checkpoint is due by time, or was asked for."""


class Regrouped(Message, frozen=True):
    """The groups of workers in lockstep have changed."""

    state: RegroupingState


class PeerReturned(Message, frozen=True):
    """A peer that was restarted has a replica, and the others are told of it."""

    name: str


class TraceWritten(Message, frozen=True):
    """All records so far are in the coordinator's trace."""


class LeaseSnapshot(Message, frozen=True):
    """The state of the lease service; it replaces the messages about leases before it."""

    state: LiveLeaseState


Decision = (
    Listening
    | HostLost
    | TimeIsUp
    | EvaluationDue
    | StoringDue
    | Regrouped
    | PeerReturned
    | TraceWritten
    | LeaseSnapshot
)
"""What the coordinator itself decides; no other process can send it."""


class JournalEntry(msgspec.Struct, frozen=True, array_like=True):
    """An input of the coordinator: a message and its sender, or a decision."""

    at: float
    """When, on the host's monotonic clock."""
    name: str
    message: Control | Decision


_HEARD = (Hello, Goodbye, Lost, Knock, Withdraw, Disband)
_KEPT = (*_HEARD, Listening, HostLost, Regrouped, PeerReturned)
_REPLACED = (Word, TimeIsUp, EvaluationDue, StoringDue, TraceWritten)
_WRITTEN = frozenset((*_KEPT, *_REPLACED))
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(JournalEntry)


class CoordinatorJournal:
    """The journal of the coordinator of one run.

    Args:
        areas: the storage.
        clock: a source of seconds.
    """

    def __init__(self, areas: Areas, clock: Callable[[], float]) -> None:
        self._journal = InputJournal(areas)
        self._clock = clock
        self._kept: list[bytes] = []
        """Entries about members, which are never replaced."""

    @property
    def is_long(self) -> bool:
        """Whether it is to be shortened."""
        return self._journal.is_long

    def recover(self) -> list[JournalEntry]:
        """The entries of a predecessor, in order; empty if there was none."""
        records = self._journal.recover()
        entries = [_decoder.decode(record) for record in records]
        for record, entry in zip(records, entries, strict=True):
            if isinstance(entry.message, _KEPT):
                self._kept.append(record)
        return entries

    def note(self, name: str, message: Control | Decision) -> None:
        """Write an input, if it changes what a successor has to know."""
        if type(message) in _WRITTEN:
            record = _encoder.encode(JournalEntry(self._clock(), name, message))
            self._journal.append(record)
            if isinstance(message, _KEPT):
                self._kept.append(record)

    def shorten(self, state: LiveLeaseState | None) -> None:
        """Replace the messages about leases by the state that they led to.

        All records of the trace must have been written.
        """
        # The records of these messages are in the trace already.
        records = [*self._kept, _encoder.encode(JournalEntry(self._clock(), "", TraceWritten()))]
        if state is not None:
            records.append(_encoder.encode(JournalEntry(self._clock(), "", LeaseSnapshot(state))))
        self._journal.shorten(records)


class SharedAreas:
    """Areas in files, or in memory of another process, which outlive this process.

    Args:
        paths: the two files, which exist.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        # A successor opens the file anew, and appends behind what its predecessor has written.
        how = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        self._files = [os.open(path, how) for path in paths]

    def read(self, area: int) -> bytes:
        """All bytes of an area."""
        pieces: list[bytes] = []
        while piece := os.pread(self._files[area], _READ, len(pieces) * _READ):
            pieces.append(piece)
        return b"".join(pieces)

    def clear(self, area: int) -> None:
        """Empty an area."""
        os.ftruncate(self._files[area], 0)

    def append(self, area: int, data: bytes) -> None:
        """Write bytes at the end of an area; one system call may write less."""
        done = 0
        while done < len(data):
            done += os.write(self._files[area], data[done:] if done else data)


def open_areas(assignment: Assignment) -> SharedAreas:
    """The storage of the journal of a run's coordinator."""
    if assignment.coordinator_journal:
        agent = assignment.agent
        return SharedAreas([f"/proc/{agent}/fd/{one}" for one in assignment.coordinator_journal])
    folder = Path(assignment.private)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"coordinator-{area}.journal" for area in (0, 1)]
    for path in paths:
        path.touch(0o600)
    return SharedAreas(paths)
