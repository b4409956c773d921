"""Journal of a live server, whose writing overlaps with the decisions about the calls.

The job's `durability` decides which failures the journal survives. Under `process` it is stored in
memory that outlives the server (`manyhands.live.server.journal_storage`), or in the page cache for
large models. Under `power` it is stored in a file that is synchronised before a call is answered;
calls that have arrived together share one synchronisation. Under `none` nothing is written. What is
written is defined by `manyhands.protocols.parts.recovery.server_journal`.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from manyhands.protocols.parts.recovery.server_journal import JournaledCall, ServerJournal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.live.server.journal_storage import Log
    from manyhands.parameters import Holder
    from manyhands.protocols import Call, ServerState

_ASIDE = 2 << 20
"""Bytes of an update from which on a separate thread copies it to the file."""


class Journal(ServerJournal):
    """The journal of one server.

    Args:
        log: the storage.
        durable: whether calls must survive a power failure. Payloads have a checksum then, because
            their parts may reach the disk in any order.
    """

    def __init__(self, log: Log, *, durable: bool = False) -> None:
        super().__init__(log, durable=durable)
        self._storage = log
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._writing: Future[None] | None = None
        self._unsynced = False

    @property
    def batch(self) -> int:
        """How many calls are written together before they are executed."""
        return max(1, self._entries - self._index) if self._durable else 1

    def supply(self) -> memoryview:
        """A buffer to receive a payload into."""
        return self._storage.supply()

    def append(self, call: Call, payload: memoryview) -> bool:
        """Start to write a call; its payload must not change until `settle`.

        Returns:
            Whether the journal keeps the payload in place: a buffer from `supply`, which then
            belongs to the journal until the next snapshot.
        """
        # One write at a time, in the order of the calls: a reader stops at the first head that is
        # missing, and would not reach a later one.
        self._join()
        kept = self._storage.keeps(payload)
        if len(payload) < _ASIDE or kept:
            self.write(call, payload)
        else:
            self._writing = self._thread.submit(self.write, call, payload)
        self._unsynced = True
        return kept

    def settle(self) -> None:
        """Wait until all calls are written: before that, none may be answered."""
        # Before the disk is synchronised, which would otherwise leave out what the thread still
        # writes.
        self._join()
        if self._durable and self._unsynced:
            self._storage.sync()
        self._unsynced = False

    def _join(self) -> None:
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def close(self) -> None:
        """Release files and memory."""
        self._thread.shutdown()
        self._storage.close()

    def remove(self) -> None:
        """Delete the journal, after a run that has finished."""
        self._storage.remove()


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
