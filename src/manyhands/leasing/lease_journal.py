"""Journal of a lease service: its inputs, for the successor of a virtual coordinator.

A live coordinator writes the messages that lead to these inputs, with those about its members. Both
store their records in the same way (`manyhands.leasing.journal`). This journal is shortened often,
so that simulated crashes also restore snapshots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from manyhands.leasing.journal import InputJournal, PrivateAreas
from manyhands.leasing.lease_service import LeaseServiceState
from manyhands.wire.leasing import Leasing

if TYPE_CHECKING:
    from manyhands.leasing.lease_service import LeaseService

_MOST = 16
"""Inputs between two snapshots, if these are small."""
_INPUT = 50
"""About so many bytes has an input: of all that is written, snapshots are a half at most."""


class LeaseInput(msgspec.Struct, frozen=True, array_like=True):
    """An input of a lease service, or a snapshot of its state."""

    what: Literal["admit", "hear", "lose", "stop", "pause", "store", "enough", "snapshot"]
    worker: str = ""
    message: Leasing | None = None
    state: LeaseServiceState | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LeaseInput)


class LeaseJournal:
    """The journal of a lease service.

    Args:
        service: the service, as it is now.
    """

    def __init__(self, service: LeaseService) -> None:
        self._areas = PrivateAreas()
        self._journal = InputJournal(self._areas, _MOST)
        self._journal.recover()
        self._shorten(service)

    def note(self, service: LeaseService, taken: LeaseInput) -> None:
        """Write an input of the service, before it takes effect."""
        # Before the input is written: it has not taken effect, so it is not in the snapshot, and a
        # successor has to replay it after the snapshot.
        if self._journal.is_long:
            self._shorten(service)
        self._journal.append(_encoder.encode(taken))

    def _shorten(self, service: LeaseService) -> None:
        snapshot = _encoder.encode(LeaseInput("snapshot", state=service.state()))
        self._journal.shorten([snapshot])
        # A snapshot grows with the number of workers: with thousands of them, one after every
        # sixteen inputs would be most of what is written.
        self._journal.most = max(_MOST, len(snapshot) // _INPUT)

    def replay(self, service: LeaseService) -> None:
        """Restore a new service; what it decides again was sent before."""
        # As after a crash, only what is stored is known.
        self._journal = InputJournal(self._areas, _MOST)
        for record in self._journal.recover():
            _enter(service, _decoder.decode(record))


def _enter(service: LeaseService, taken: LeaseInput) -> None:
    match taken:
        case LeaseInput(what="snapshot", state=LeaseServiceState() as state):
            service.restore(state)
        case LeaseInput(what="hear", worker=worker, message=message) if message is not None:
            service.hear(worker, message)
        case LeaseInput(what="admit", worker=worker):
            service.admit(worker)
        case LeaseInput(what="lose", worker=worker):
            service.lose(worker)
        case LeaseInput(what="stop"):
            service.stop()
        case LeaseInput(what="pause"):
            service.pause()
        case LeaseInput(what="store"):
            service.pause_to_store()
        case LeaseInput(what="enough"):
            service.leases.stop()
