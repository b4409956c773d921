"""The coordinator: who takes part, who is alive, and where the traces come together.

A process of its own that never imports torch, so it starts at once and answers while others
compute. It decides with the pure functions of `manyhands.membership`; this file only listens,
remembers and tells.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.live.assignment import Assignment
from manyhands.live.desk import LeaseDesk
from manyhands.live.gate import Gate
from manyhands.live.lifeline import die_with
from manyhands.live.pulse import append_to
from manyhands.membership import Member, Membership, Sign, suspects
from manyhands.trace import Recorder, live_header, trace_file
from manyhands.transport.control import Hub
from manyhands.wire import Beat, Control, Goodbye, Hello, Pong, Roll, Status, TraceChunk, Warn
from manyhands.wire.joining import Disband
from manyhands.wire.leasing import Dismiss, Fence, Lost

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

SILENCE = 5.0
"""Seconds without a heartbeat after which a worker is named."""
STALL = 10.0
"""Seconds in which somebody waits in a collective until those who keep it waiting are named."""
_TELL_EVERY = 0.5
_LAST_WORDS = 2.0
_TRACE_LIMIT = 256 * 1024 * 1024
_NAME = re.compile(r"^(worker|server)-\d{1,6}$")


class Coordinator:
    """The state of one run.

    Args:
        hub: where messages come from.
        expected: how many workers make the run complete.
        folder: the run's, for the members' traces.
        host: the name of this one.
        recorder: the coordinator's own trace.
        clock: seconds.
        desk: leases samples to workers that run free.
        gate: lets other hosts in.
    """

    def __init__(
        self,
        hub: Hub,
        expected: int,
        folder: Path,
        host: str,
        recorder: Recorder,
        clock: Callable[[], float],
        desk: LeaseDesk | None,
        gate: Gate | None = None,
    ) -> None:
        self._hub = hub
        self._desk = desk
        self._gate = gate
        self._servers: dict[str, Member] = {}
        self._addresses: dict[str, tuple[str, str]] = {}
        """Host and address of each server that other hosts reach."""
        self._expected = expected
        self._traces = folder / "trace"
        self._host = host
        self._recorder = recorder
        self._clock = clock
        self._waiting: dict[str, Member] = {}
        self.membership = Membership()
        self._signs: dict[str, Sign] = {}
        self._samples: dict[str, int] = {}
        self._losses: dict[str, float] = {}
        self._written: dict[str, int] = {}
        self._accused: set[str] = set()
        self._told = 0.0
        self._agent_left: float | None = None

    def serve(self) -> None:
        """Listen until the agent has said goodbye and the others' last words are in."""
        while not self._is_over():
            for name, message in self._hub.receive(0.1):
                self._hear(name, message)
            self._look_around()
        self._recorder.flush()
        if self._gate is not None:
            self._gate.close()

    def _is_over(self) -> bool:
        if self._agent_left is None:
            return False
        left = self._signs or self._servers or (self._gate is not None and self._gate.agents)
        return not left or self._clock() - self._agent_left > _LAST_WORDS

    def _hear(self, name: str, message: Control) -> None:
        if self._gate is not None and self._gate.hear(name, message):
            return
        match message:
            case Hello():
                self._welcome(name, message)
            case Beat():
                self._hub.send(name, Pong(message.sent, self._clock()))
                self._note(name, message)
            case TraceChunk():
                self._store(name, message.lines)
            case Goodbye():
                self._farewell(name, message)
            case Lost(name=gone, words=words):
                self._mourn(gone, words)
            case _ if self._desk is not None and name.endswith(".leases"):
                self._desk.hear(name.removesuffix(".leases"), message)
            case _:
                self._recorder.event("unexpected", {"from": name, "what": type(message).__name__})

    def _welcome(self, name: str, hello: Hello) -> None:
        member = Member(hello.role, hello.rank, hello.host, hello.pid)
        if name != member.name:
            return
        if hello.address:
            server = f"server-{hello.rank}"
            self._addresses[server] = (hello.host, hello.address)
        if hello.role == "server":
            self._servers[name] = member
            self._complete_if_all()
            return
        self._waiting[name] = member
        now = self._clock()
        self._signs[name] = Sign(member, now, now, 0, "start", "its start")
        self._complete_if_all()

    def _complete_if_all(self) -> None:
        """Begin when all workers are here, and other hosts know where to find the servers."""
        reachable = self._gate is None or len(self._addresses) >= self._gate.servers
        if not self.membership.epoch and len(self._waiting) == self._expected and reachable:
            self._complete()

    def _complete(self) -> None:
        self.membership = self.membership.joined(*self._waiting.values())
        if self._desk is not None:
            self._desk.open(self._waiting)
        workers = sorted(self._waiting.values())
        self._recorder.event(
            "epoch-of-members",
            {
                "epoch": str(self.membership.epoch),
                "members": ", ".join(str(member) for member in workers),
            },
        )
        roll = Roll(
            self.membership.epoch,
            tuple((member.rank, member.host, member.pid) for member in workers),
            tuple((name, *at) for name, at in sorted(self._addresses.items())),
        )
        for member in workers:
            self._hub.send(member.name, roll)

    def _note(self, name: str, beat: Beat) -> None:
        sign = self._signs.get(name)
        if sign is None:
            return
        now = self._clock()
        self._signs[name] = replace(
            sign,
            heard=now,
            moved=now if (beat.step, beat.phase) != (sign.step, sign.phase) else sign.moved,
            step=beat.step,
            phase=beat.phase,
            line=beat.line,
        )
        self._samples[name] = beat.samples
        if beat.loss is not None:
            self._losses[name] = beat.loss

    def _store(self, name: str, lines: bytes) -> None:
        """Append to the sender's trace; what a process may write in all is limited."""
        if not _NAME.match(name):
            return
        written = self._written.get(name, 0) + len(lines)
        if written > _TRACE_LIMIT:
            return
        self._written[name] = written
        append_to(self._traces / f"{name}.jsonl")(lines)

    def _farewell(self, name: str, goodbye: Goodbye) -> None:
        if name == "agent-0":
            self._agent_left = self._clock()
            self._tell_agent()
            return
        if name in self._servers:
            del self._servers[name]
            return
        self._samples[name] = goodbye.samples
        sign = self._signs.pop(name, None)
        if sign is not None:
            self.membership = self.membership.left(name)
            detail = {"member": str(sign.member), "epoch": str(self.membership.epoch)}
            self._recorder.event("left", detail)
        for worker in self._signs:
            self._hub.send(worker, Dismiss())
        if not self._signs:
            for server in self._servers:
                self._hub.send(server, Dismiss())

    def _mourn(self, name: str, words: str) -> None:
        """A worker's process is gone: its samples are given again, its late calls refused."""
        self._signs.pop(name, None)
        self.membership = self.membership.left(name)
        self._recorder.event("lost", {"member": name, "words": words})
        for other in (*self._servers, *self._signs):
            self._hub.send(other, Fence(name))
        if self._desk is not None:
            self._desk.lose(name)

    def _look_around(self) -> None:
        now = self._clock()
        if self._desk is not None:
            self._desk.look_at_clock()
        if now - self._told < _TELL_EVERY:
            return
        self._told = now
        if self._gate is not None:
            self._gate.look_around(now)
        self._accuse(now)
        self._tell_agent()
        self._recorder.drain()

    def _accuse(self, now: float) -> None:
        """Name those who hold up the run, once; and say so when they are back."""
        accused = set()
        for suspect in suspects(now, self._signs, silence=SILENCE, stall=STALL):
            accused.add(suspect.member.name)
            if suspect.member.name not in self._accused:
                self._recorder.event("suspect", {"words": str(suspect)})
                self._hub.send("agent-0", Warn(str(suspect)))
        for name in sorted(self._accused - accused & self._signs.keys()):
            if name in self._signs:
                words = f"{self._signs[name].member} is back"
                self._recorder.event("back", {"words": words})
                self._hub.send("agent-0", Warn(words))
        self._accused = accused

    def _tell_agent(self) -> None:
        losses = self._losses.values()
        status = Status(
            epoch=self.membership.epoch,
            joined=len(self._waiting),
            expected=self._expected,
            samples=self._desk.committed if self._desk else sum(self._samples.values()),
            loss=sum(losses) / len(losses) if losses else None,
            started=self.membership.epoch > 0,
            phase=self._signs["worker-0"].phase if "worker-0" in self._signs else "",
        )
        if self._gate is not None:
            status = self._gate.complete(status, {m.rank for m in self._waiting.values()})
        for name in ("agent-0", *(self._gate.agents if self._gate else ())):
            self._hub.send(name, status)

    def disband(self, words: str) -> None:
        """Tell other hosts that the run has failed."""
        if self._gate is not None:
            self._gate.disband(Disband(failed=True, words=words))

    def pids(self) -> list[int]:
        """The process ids of this host's workers and servers that have not left."""
        members = [sign.member for sign in self._signs.values()]
        everybody = (*members, *self._servers.values())
        return [member.pid for member in everybody if member.host == self._host]


class _AgentGone(Exception):  # noqa: N818 - an event, raised from a signal handler
    pass


def main(path: str) -> None:
    """Run the coordinator of the assignment at `path`, as a child of the agent."""
    assignment = Assignment.read(Path(path))
    say = _agents_words(assignment.agent)
    signal.signal(signal.SIGTERM, _raise_gone)
    die_with(assignment.agent, signal.SIGTERM)
    folder = Path(assignment.folder)
    clock, host = time.monotonic, assignment.host
    head = live_header("coordinator", 0, clock=clock, wall=time.time, host=host)
    recorder = Recorder(head, append_to(trace_file(folder, head)), clock)
    outside = f"tcp://{assignment.address}:{assignment.port}" if assignment.hosts else None
    with Hub(assignment.coordinator, outside, assignment.job_key()) as hub:
        desk = None
        if assignment.leasing is not None:
            desk = LeaseDesk(assignment.leasing, assignment.workers, hub, recorder, clock)
        gate = Gate(hub, assignment, recorder, clock) if assignment.hosts else None
        coordinator = Coordinator(
            hub, assignment.workers, folder, host, recorder, clock, desk, gate
        )
        try:
            coordinator.serve()
        except _AgentGone:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if _is_orphaned(assignment.agent):
                _bury(assignment, coordinator, recorder, say)


def _is_orphaned(agent: int) -> bool:
    """Whether the agent is dead, or only asks politely.

    The kernel signals the death of the thread that started us. Until the agent's other threads
    are dead too, which takes a busy machine a while, it still counts as our parent.
    """
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        if os.getppid() != agent or _is_dying(agent):
            return True
        time.sleep(0.01)
    return False


def _is_dying(pid: int) -> bool:
    """Whether a process has begun to end: its first thread has, or SIGKILL awaits it."""
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


def _agents_words(agent: int) -> Callable[[str], None]:
    """A way to the agent's terminal that outlives the agent, opened while it lives."""
    try:
        descriptor = os.open(f"/proc/{agent}/fd/2", os.O_WRONLY | os.O_APPEND)
    except OSError:  # its stderr may be a socket, or closed; the log still has the words
        descriptor = sys.stderr.fileno()

    def say(words: str) -> None:
        with contextlib.suppress(OSError):
            os.write(descriptor, f"\n{words}\n".encode())

    return say


def _bury(
    assignment: Assignment,
    coordinator: Coordinator,
    recorder: Recorder,
    say: Callable[[str], None],
) -> None:
    """The agent was killed: end what it left behind, remove its private folder and say so."""
    for pid in coordinator.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    words = (
        f"manyhands: the agent (pid {assignment.agent}) was killed; its coordinator and "
        f"{assignment.workers} workers ended with it. The run is in {assignment.folder}"
    )
    coordinator.disband(words)
    recorder.event("end", {"status": "failed", "words": words})
    recorder.flush()
    shutil.rmtree(assignment.private, ignore_errors=True)
    say(words)


if __name__ == "__main__":
    main(sys.argv[1])
