"""Slots: the buffers into which a responder receives large payloads, and from which it sends them.

There are a few, which are allocated when they are first needed and then used again and again, so
memory does not grow with the number of callers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import zmq


@dataclass(eq=False)
class Slot:
    """A buffer for one payload."""

    bytes: memoryview
    trackers: list[zmq.MessageTracker] = field(default_factory=list)
    """Trackers of messages that are still being sent from it."""


class Slots:
    """The slots of a responder: each is in use, free, reserved for a caller, or still sending.

    Args:
        number: how many.
        supply: returns the memory of a slot.
    """

    def __init__(self, number: int, supply: Callable[[], memoryview]) -> None:
        self.number = number
        self._supply = supply
        self._unmade = number
        """Number of slots that were never needed, and have no memory yet."""
        self._free: list[Slot] = []
        self._reserved: dict[str, Slot] = {}
        """Slots reserved for the next payloads of callers, the oldest reservation first."""
        self._sending: list[Slot] = []

    @property
    def is_sending(self) -> bool:
        """Whether a slot becomes free without a message of a caller."""
        return bool(self._sending)

    def has_free(self) -> bool:
        """Whether there is a free slot; allocates one if not all exist yet."""
        if not self._free and self._unmade:
            self._unmade -= 1
            self._free.append(Slot(self._supply()))
        return bool(self._free)

    def take(self) -> Slot:
        """A free slot, to use; there must be one."""
        return self._free.pop()

    def free(self, slot: Slot) -> None:
        """Free a slot that was in use."""
        self._free.append(slot)

    def free_when_sent(self, slot: Slot) -> None:
        """Free a slot that was in use, once all that is being sent from it has been sent."""
        self._sending.append(slot)

    def surrender(self) -> None:
        """Give up the memory of a slot that was in use; another is allocated when needed."""
        self._unmade += 1

    def reserve(self, caller: str, slot: Slot) -> None:
        """Reserve a slot that was in use for a caller's next payload, and no other."""
        self.cancel(caller)
        self._reserved[caller] = slot

    def take_reserved(self, caller: str) -> Slot | None:
        """The slot that was reserved for a caller, to use; None if there is none.

        What was sent from it must have been received.
        """
        slot = self._reserved.pop(caller, None)
        if slot is not None:
            slot.trackers.clear()
        return slot

    def cancel(self, caller: str) -> None:
        """Cancel a caller's reservation; the slot may still be sending."""
        slot = self._reserved.pop(caller, None)
        if slot is not None:
            self._sending.append(slot)

    def settle(self) -> None:
        """Free the slots from which everything has been sent."""
        for slot in [slot for slot in self._sending if all(one.done for one in slot.trackers)]:
            self._sending.remove(slot)
            slot.trackers.clear()
            self._free.append(slot)

    def reclaim(self, wanted: int) -> None:
        """Cancel the oldest reservation if more slots are wanted than will be free without it."""
        if self._reserved and wanted > self._unmade + len(self._free) + len(self._sending):
            # Its caller may have begun to send; these parts are refused, and the grant that it gets
            # later makes it send the payload again.
            self.cancel(next(iter(self._reserved)))
