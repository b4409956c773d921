"""The coordinator's process, which the first host's agent starts, and restarts if it was killed."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from manyhands.transport.shared.memory import can_share, reserve
from manyhands.wire import Beat, Goodbye, Repeat
from manyhands.wire.leasing import Lost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from manyhands.live.processes.host_processes import HostProcesses
    from manyhands.live.processes.supervision import Exit, Process
    from manyhands.trace import Recorder
    from manyhands.transport.control import Line
    from manyhands.wire.joining import Disband

COORDINATOR = "coordinator"
"""The name of the process."""
_MODULE = "manyhands.live.coordinator.process"
_RESTARTS = 1000
"""How many times the coordinator may be restarted in one run."""
_PART_WITHIN = 5.0
"""Seconds in which the coordinator must have received the last traces of a run that is over."""
_INTERVAL = 1.0
"""Seconds between heartbeats of the agent, each of which is answered."""
_SILENCE = 3.5
"""Seconds without a message of the coordinator after which it is named."""
_REPEAT = 20.0
"""Seconds until it is named again."""
_MOST_EJECTED = 2
"""How often a coordinator that does not answer is replaced at the end of a run."""
_START = 60.0
"""Seconds in which the coordinator must have sent its first message."""
_STOPPED = 3.0
"""Seconds between two looks after which this process was stopped itself, and heard nothing."""
PATIENCE = 30.0
"""Seconds without a message after which it is ended and replaced, by default."""


class CoordinatorProcess:
    """The coordinator of one run, over all of its incarnations.

    Args:
        host_processes: starts the process.
        recorder: the agent's trace.
        say: shows a message to the user.
        alone: whether the run has no other hosts.
        patience: seconds without a message after which it is replaced; None for the default.
    """

    def __init__(
        self,
        host_processes: HostProcesses,
        recorder: Recorder,
        say: Callable[[str], object],
        *,
        alone: bool,
        patience: float | None = None,
    ) -> None:
        self._host_processes = host_processes
        self._recorder = recorder
        self._say = say
        self._alone = alone
        self._restarts = 0
        self.journal: tuple[int, ...] = (reserve(), reserve()) if can_share() else ()
        """Descriptors of the memory for its journal; empty if files are to be used."""
        self.process: Process | None = None
        """The present incarnation; None before the start."""
        self._patience = PATIENCE if patience is None else patience
        self._has_spoken = False
        """Whether the present incarnation has sent a message."""
        self._heard = self._looked = time.monotonic()
        self._beaten = self._named = float("-inf")

    def hear(self) -> None:
        """Note that it has sent a message."""
        self._has_spoken, self._heard = True, time.monotonic()
        if self._named > float("-inf") and self.process is not None:
            self._say(f"coordinator on {self.process.host} (pid {self.process.pid}) is back")
        self._named = float("-inf")

    def beat(self, line: Line) -> None:
        """Send a heartbeat, if it is due, which it answers."""
        now = time.monotonic()
        if now - self._beaten >= _INTERVAL:
            self._beaten = now
            line.send(Beat(now, 0, 0, None, "watch", ""))

    def look(self, line: Line) -> None:
        """Name a coordinator that does not answer, and end it when the patience is over."""
        self.beat(line)
        now = time.monotonic()
        # This process was stopped itself: messages wait in its queue, and the silence is its own.
        if now - self._looked > _STOPPED:
            self._heard = now
        self._looked = now
        silent = now - self._heard
        if self.process is None or silent <= _SILENCE or self.process.poll() is not None:
            return
        if silent > (self._patience if self._has_spoken else max(self._patience, _START)):
            self._end_silent(silent)
        elif self._has_spoken and now - self._named >= _REPEAT:
            self._named = now
            who = f"coordinator on {self.process.host} (pid {self.process.pid})"
            self._say(f"{who} has not answered for {silent:.0f} s: it is stopped, or hangs")

    def _end_silent(self, silent: float) -> None:
        if self.process is not None:
            self._named = float("-inf")
            self.process.eject(f"ejected, because it did not answer for {silent:.0f} s")

    def _begin_watch(self) -> None:
        self._heard, self._has_spoken = time.monotonic(), False

    def start(self) -> None:
        """Start the first one."""
        self._begin_watch()
        self.process = self._host_processes.start(COORDINATOR, _MODULE)

    def has_ended(self) -> Exit | None:
        """How the present incarnation ended; None while it runs."""
        return None if self.process is None else self.process.poll()

    def restart(self, exit_: Exit, line: Line, missed: Iterable[Exit]) -> bool:
        """Start a successor of a coordinator that was ended by a signal; whether there is one.

        It continues from the journal. An exception would be raised again by a successor. A
        coordinator that received SIGTERM, but not from its agent, exits with code 0.

        Args:
            exit_: how it ended.
            line: connection to the coordinator; it reconnects by itself.
            missed: ends of workers that it has not confirmed, which are reported again.
        """
        by_signal = exit_.code <= 0 and exit_.report is None
        if self.process is None or not by_signal or self._restarts >= _RESTARTS:
            return False
        self._restarts += 1
        self._say(f"{exit_}: coordinator restarted, the workers continue meanwhile")
        self._recorder.event("restart", {"member": COORDINATOR, "words": str(exit_)})
        self.process.close()
        self._begin_watch()
        log = f"{COORDINATOR}.{self._restarts}"
        self.process = self._host_processes.start(COORDINATOR, _MODULE, log)
        # The predecessor may have been killed before it wrote these losses down; a loss that it has
        # written is noted once.
        for lost in missed:
            line.send(Lost(lost.name, str(lost), lost.incarnation))
        if not self._alone:
            # Ends of other hosts' processes may have been on their way through the predecessor.
            line.send(Repeat())
        return True

    def part(self, line: Line, parting: Disband, follow: Callable[[], object]) -> None:
        """Send that the run is over, and wait until the coordinator has received all traces.

        Args:
            line: connection to the coordinator.
            parting: how the run ended.
            follow: processes messages of the coordinator.
        """
        deadline = time.monotonic() + _PART_WITHIN
        said = ejected = 0
        while self.process is not None:
            now = time.monotonic()
            if now > deadline:
                if now - self._heard < _SILENCE or ejected == _MOST_EJECTED:
                    return
                # It is stopped, or hangs: a successor writes what is left of the traces.
                ejected, deadline = ejected + 1, now + _PART_WITHIN
                self._end_silent(now - self._heard)
            gone = self.has_ended()
            if gone is not None and (gone.code == 0 or not self.restart(gone, line, ())):
                return
            # Once to each incarnation: a successor may not have found the message in the journal.
            if said <= self._restarts:
                said = self._restarts + 1
                line.send(parting)
                line.send(Goodbye(0, 0))
            follow()

    def close(self) -> None:
        """Free the memory of the journal."""
        for descriptor in self.journal:
            os.close(descriptor)
