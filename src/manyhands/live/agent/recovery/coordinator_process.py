"""The coordinator's process, which the first host's agent starts, and restarts if it was killed."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from manyhands.transport.shared.memory import can_share, reserve
from manyhands.wire import Goodbye, Repeat
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


class CoordinatorProcess:
    """The coordinator of one run, over all of its incarnations.

    Args:
        host_processes: starts the process.
        recorder: the agent's trace.
        say: shows a message to the user.
        alone: whether the run has no other hosts.
    """

    def __init__(
        self,
        host_processes: HostProcesses,
        recorder: Recorder,
        say: Callable[[str], object],
        *,
        alone: bool,
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

    def start(self) -> None:
        """Start the first one."""
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
        log = f"{COORDINATOR}.{self._restarts}"
        self.process = self._host_processes.start(COORDINATOR, _MODULE, log)
        for lost in missed:
            line.send(Lost(lost.name, str(lost), lost.incarnation))
        if not self._alone:
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
        said = 0
        while self.process is not None and time.monotonic() < deadline:
            gone = self.has_ended()
            if gone is not None and (gone.code == 0 or not self.restart(gone, line, ())):
                return
            if said <= self._restarts:
                said = self._restarts + 1
                line.send(parting)
                line.send(Goodbye(0, 0))
            follow()

    def close(self) -> None:
        """Free the memory of the journal."""
        for descriptor in self.journal:
            os.close(descriptor)
