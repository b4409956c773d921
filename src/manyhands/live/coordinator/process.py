"""The coordinator's process: receives heartbeats and traces of all members.

It never imports torch, so it starts fast and answers while workers compute. If it is killed, the
agent starts a successor, which continues from the journal. If the agent is killed, it ends the
remaining processes and reports it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.files.checkpoints.manifest import ASKED, CHECKPOINTS
from manyhands.files.standard_streams import outlast_unwritable
from manyhands.leasing.membership import Patience
from manyhands.leasing.regrouping import Regrouping
from manyhands.live.assignment import Assignment
from manyhands.live.coordinator.admission import Admission
from manyhands.live.coordinator.coordinator import Coordinator
from manyhands.live.coordinator.journal import (
    CoordinatorJournal,
    Listening,
    Regrouped,
    open_areas,
)
from manyhands.live.coordinator.lease_service import LiveLeaseService
from manyhands.live.coordinator.recovery import ReplayClock, outside_of, recover
from manyhands.live.member.trace_files import TraceFiles
from manyhands.live.processes.descriptors import raise_descriptors
from manyhands.live.processes.incarnation import incarnation
from manyhands.live.processes.parent_death import die_with
from manyhands.trace import Recorder, live_header, trace_file
from manyhands.transport.control import Hub
from manyhands.transport.interfaces import write_place
from manyhands.wire import Warn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


class _AgentGone(Exception):  # noqa: N818 - an event, raised from a signal handler
    pass


def main(path: str) -> None:
    """Run the coordinator of the assignment at `path`, as a child of the agent."""
    assignment = Assignment.read(Path(path))
    outlast_unwritable()
    say = _agents_terminal(assignment.agent)
    # Before `die_with`: from that call on the signal may come at any moment, and without a handler
    # it would end this process without a clean-up.
    signal.signal(signal.SIGTERM, _raise_gone)
    try:
        die_with(assignment.agent, signal.SIGTERM)
        _serve(assignment, say)
    except _AgentGone:
        # It had no coordinator yet that knows processes; the kernel ends them with the agent.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if _is_orphaned(assignment.agent):
            shutil.rmtree(assignment.private, ignore_errors=True)
            say(_killed(assignment))


def _serve(assignment: Assignment, say: Callable[[str], None]) -> None:
    """Open the journal and the connections, and coordinate the run to its end."""
    raise_descriptors()
    folder = Path(assignment.folder)
    clock, host = ReplayClock(time.monotonic), assignment.host
    journal = CoordinatorJournal(open_areas(assignment), clock)
    entries = journal.recover()
    head = live_header("coordinator", 0, clock=clock, wall=time.time, host=host)
    outside = _place(assignment) if assignment.hosts else None
    # A successor listens where its predecessor did, because the other hosts reconnect there.
    outside = outside_of(entries) or outside
    with Hub(assignment.coordinator, outside, assignment.job_key()) as hub:
        files = TraceFiles(lambda words: hub.send("agent-0", Warn(words)), clock)
        trace = trace_file(folder, head)
        # A predecessor that was killed early may have written nothing, not even the head of the
        # trace.
        written = bool(entries) and trace.exists() and trace.stat().st_size > 0
        recorder = Recorder(head, partial(files.append, trace), clock, continues=written)
        files.note = partial(recorder.event, "trace waited")
        lease_service = None
        if assignment.leasing is not None:
            asking = folder / CHECKPOINTS / ASKED
            lease_service = LiveLeaseService(
                *(assignment.leasing, assignment.workers, hub, recorder, clock, journal.note),
                asking=asking,
            )
        regrouping = Regrouping(hub.send_all, clock, assignment.row) if assignment.elastic else None
        admission = None
        if assignment.hosts:
            admission = Admission(hub, assignment, recorder, clock, files, journal.note)
        coordinator = Coordinator(
            hub,
            assignment.workers,
            folder,
            host,
            recorder,
            clock,
            lease_service,
            admission,
            Patience.of(assignment.patience, recovers=assignment.recovers),
            takes_back=assignment.takes_back or assignment.elastic,
            peers=assignment.peers,
            files=files,
            journal=journal,
            regrouping=regrouping,
            terminal=say,
            life=incarnation(),
        )
        try:
            if entries:
                recover(entries, coordinator, recorder, hub, clock)
            else:
                # The port may have been chosen by the system. Agents of other hosts reconnect to
                # it, so a successor has to listen at the same one.
                journal.note("", Listening(hub.outside))
            if regrouping is not None:
                # Only after the replay: the changes that it leads to are in the journal already.
                regrouping.note = lambda state: journal.note("", Regrouped(state))
            coordinator.serve()
        except _AgentGone:
            # A second signal would interrupt the clean-up, and processes of the run would be left.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if _is_orphaned(assignment.agent):
                _clean_up(assignment, coordinator, recorder, say)


def _place(assignment: Assignment) -> str:
    """The address at which the coordinator listens for other hosts."""
    return f"tcp://{write_place(assignment.address, assignment.port)}"


def _is_orphaned(agent: int) -> bool:
    """Whether the agent is dead, as opposed to having sent SIGTERM itself.

    The kernel sends the signal when the agent's starting thread dies. Until its other threads are
    dead too, which takes a while on a busy machine, the agent is still this process's parent.
    """
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        if os.getppid() != agent or _is_dying(agent):
            return True
        time.sleep(0.01)
    return False


def _is_dying(pid: int) -> bool:
    """Whether a process is ending: its first thread has ended, or a SIGKILL is pending."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True
    facts = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    if facts.get("State", "").strip()[:1] in ("Z", "X"):
        return True
    kill = 1 << (signal.SIGKILL - 1)
    return any(int(facts.get(name, "0"), 16) & kill for name in ("SigPnd", "ShdPnd"))


def _raise_gone(_signal: int, _frame: FrameType | None) -> None:
    raise _AgentGone


def _agents_terminal(agent: int) -> Callable[[str], None]:
    """A function that writes to the agent's terminal, also after the agent has been killed."""
    try:
        descriptor = os.open(f"/proc/{agent}/fd/2", os.O_WRONLY | os.O_APPEND)
    except OSError:  # its stderr may be a socket, or closed; the log still has the message
        descriptor = sys.stderr.fileno()

    def say(words: str) -> None:
        with contextlib.suppress(OSError):
            os.write(descriptor, f"\n{words}\n".encode())

    return say


def _killed(assignment: Assignment) -> str:
    """That the agent was killed, in words."""
    return (
        f"manyhands: the agent (pid {assignment.agent}) was killed; its coordinator and "
        f"{assignment.workers} workers were ended. The run is in {assignment.folder}"
    )


def _clean_up(
    assignment: Assignment,
    coordinator: Coordinator,
    recorder: Recorder,
    say: Callable[[str], None],
) -> None:
    """Clean up after an agent that was killed: end its processes and remove its private folder."""
    for pid in coordinator.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    words = _killed(assignment)
    coordinator.disband(words)
    recorder.event("end", {"status": "failed", "words": words})
    recorder.flush()
    shutil.rmtree(assignment.private, ignore_errors=True)
    say(words)


if __name__ == "__main__":
    main(sys.argv[1])
