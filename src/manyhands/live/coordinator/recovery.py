"""Recovery of the coordinator: a successor replays the journal of a coordinator that was killed.

Nothing is sent meanwhile, and the clock shows the time of each entry. What the predecessor decided
and may not have sent is sent afterwards: leases by the reliable channels, the roll and fences in
answer to heartbeats, ends of other hosts' processes when the agent asks for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.live.coordinator.journal import Listening, TraceWritten

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from manyhands.live.coordinator.coordinator import Coordinator
    from manyhands.live.coordinator.journal import JournalEntry
    from manyhands.trace import Recorder
    from manyhands.transport.control import Hub


class ReplayClock:
    """A clock that shows the time of the entry that is replayed, and otherwise the present.

    Args:
        clock: a source of seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.at: float | None = None
        """The time of the entry; None for the present."""

    def __call__(self) -> float:
        """Seconds."""
        return self._clock() if self.at is None else self.at


def outside_of(entries: Sequence[JournalEntry]) -> str:
    """Where the predecessor listened for other hosts; empty if it did not, or there was none."""
    found = [one.message.outside for one in entries if isinstance(one.message, Listening)]
    return found[-1] if found else ""


def recover(
    entries: Sequence[JournalEntry],
    coordinator: Coordinator,
    recorder: Recorder,
    hub: Hub,
    clock: ReplayClock,
) -> None:
    """Continue for a predecessor that has left these entries.

    Args:
        entries: its journal.
        coordinator: a coordinator that has received nothing yet.
        recorder: the trace; records that the predecessor has not written are written again.
        hub: sends nothing while entries are replayed.
        clock: shows the times of the entries.
    """
    begun = clock()
    # The predecessor has sent what the entries lead to; what was lost is repeated afterwards, by
    # channels and in answer to heartbeats. Orders sent from here would be about members as they
    # were then.
    hub.is_mute = True
    for entry in entries:
        # The time limit and the intervals of evaluations and checkpoints count from when the
        # predecessor received the messages.
        clock.at = entry.at
        if isinstance(entry.message, TraceWritten):
            recorder.discard()
        else:
            coordinator.replay(entry.name, entry.message)
    hub.is_mute, clock.at = False, None
    away = begun - entries[-1].at
    detail = {"entries": str(len(entries)), "seconds": f"{clock() - begun:.3f}"}
    recorder.event("recovered", {**detail, "away": f"{away:.3f}"})
    # After the clock shows the present again: members count as heard from now on, not from the last
    # entry.
    coordinator.resume()
