"""Admission of other hosts to a run, and forwarding of messages between their agents.

The first host's agent decides how a run continues. So the end of a process on another host is
forwarded to it, and its message that the run is over is forwarded to the other hosts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from manyhands.live.coordinator.journal import HostLost
from manyhands.live.hosts.compatibility import difference
from manyhands.live.hosts.host_list import Hosts
from manyhands.wire import Beat, Goodbye, Pong, Repeat, TraceChunk, Warn
from manyhands.wire.joining import (
    Admitted,
    Disband,
    Ended,
    HostReturned,
    Knock,
    Part,
    Rejected,
    Stored,
    Withdraw,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from manyhands.live.assignment import Assignment
    from manyhands.live.coordinator.journal import Decision
    from manyhands.live.member.trace_files import TraceFiles
    from manyhands.trace import Recorder
    from manyhands.transport.control import Hub
    from manyhands.wire import Control, Status

PATIENCE = 15.0
"""Seconds without a heartbeat after which a host counts as lost, or fewer with `--patience`."""
_LEAST = 5.0
"""The fewest such seconds."""
_NAMED = 3.5
"""Seconds without a heartbeat after which a host is named."""
_AGENT = re.compile(r"agent-[A-Za-z0-9._-]{1,80}")
_FILE = re.compile(r"model(-\d{1,6})?\.safetensors")
_TRACE_LIMIT = 64 * 1024 * 1024


@dataclass(eq=False)
class _JoinedHost:
    """A host that was admitted."""

    host: str
    number: int
    heard: float
    ended: set[str] = field(default_factory=set)
    """Its workers and servers that have ended."""
    written: int = 0
    """Bytes of its agent's trace."""
    admission: int = 0
    """Number of admissions so far, this one included."""
    is_named: bool = False
    """Whether the user was told that its agent is silent."""


class Admission:
    """The hosts that have joined, by the names of their agents.

    Args:
        hub: sends the answers.
        assignment: the first host's assignment.
        recorder: the coordinator's trace.
        clock: a source of seconds.
        files: writes the traces of other hosts' agents.
        note: receives decisions that the clock makes, before they take effect.
    """

    def __init__(
        self,
        hub: Hub,
        assignment: Assignment,
        recorder: Recorder,
        clock: Callable[[], float],
        files: TraceFiles,
        note: Callable[[str, Decision], object] | None = None,
    ) -> None:
        self._hub = hub
        self._note = note
        self._hosts = Hosts(assignment.hosts)
        self._server_hosts = assignment.server_hosts
        self._assignment = msgspec.json.encode(assignment)
        self._facts = assignment.facts
        self._folder = Path(assignment.folder)
        self._recorder = recorder
        self._files = files
        self._clock = clock
        self.servers = len(assignment.servers)
        """Number of servers whose addresses must be known before the run can begin."""
        self._joined: dict[str, _JoinedHost] = {}
        self._gone: dict[str, str] = {}
        """Agents that no longer take part, with the reason."""
        self._absent: dict[str, tuple[_JoinedHost, str]] = {}
        """Hosts that were lost and have not returned, with the reason."""
        self._returned: set[str] = set()
        """Hosts that were admitted again."""
        self._over: Disband | None = None
        self._reported: set[str] = set()
        leases = assignment.leasing is not None and assignment.takes_back
        self._takes_back = leases or assignment.elastic
        self._strategy = assignment.strategy
        # With more patience than this the agent there has given up the run itself.
        self._patience = min(PATIENCE, max(assignment.patience or PATIENCE, _LEAST))
        self._admissions = 0
        self._begun = False
        """Whether all workers have joined once."""

    @property
    def agents(self) -> list[str]:
        """The agents of other hosts that have joined."""
        return list(self._joined)

    def agent_of(self, host: str) -> str:
        """The name of a host's agent; empty if the host has not joined."""
        return next((name for name, joined in self._joined.items() if joined.host == host), "")

    def receive(self, name: str, message: Control) -> bool:
        """Process a message of an agent; return whether it was one for the admission."""
        if name == "agent-0":
            if isinstance(message, Disband):
                self.disband(message)
                return True
            if isinstance(message, Repeat):
                self._repeat()
                return True
            return False
        if not _AGENT.fullmatch(name):
            return False
        joined = self._joined.get(name)
        if isinstance(message, Knock):
            self._answer(name, message)
        elif joined is None:
            words = self._gone.get(name, "this host's agent is not part of this run")
            # A host that was cut off may still run its agent, which has not noticed it: it is told
            # that it may join again.
            rejoins = name in self._gone and self._takes_back
            self._hub.send(name, self._over or Disband(failed=True, words=words, rejoins=rejoins))
        else:
            joined.heard = self._clock()
            self._receive_from_host(name, joined, message)
        return True

    def _receive_from_host(self, name: str, joined: _JoinedHost, message: Control) -> None:
        match message:
            case Beat(sent=sent):
                self._hub.send(name, Pong(sent, self._clock()))
            case Ended(name=process) if self._is_of(joined, process):
                # A process that its own agent restarts goes on: if its host is lost later, the end
                # must be reported.
                if not message.again:
                    joined.ended.add(process)
                self._hub.send("agent-0", message)
            case Withdraw(words=words):
                self._joined.pop(name)
                self._say(f"{joined.host} cannot take part: {words}")
            case Part():
                try:
                    self._store(name, message)
                except OSError as error:  # its agent sends the piece again
                    self._say(f"{message.name} of {joined.host} cannot be written: {error}")
            case TraceChunk(lines=lines):
                joined.written += len(lines)
                if joined.written <= _TRACE_LIMIT:
                    self._files.append(
                        self._folder / "trace" / f"agent-{joined.number}.jsonl", lines
                    )
            case Goodbye():
                self._dismiss(name, joined, "its agent has left")

    def _is_of(self, joined: _JoinedHost, process: str) -> bool:
        return process in self._processes(joined.host)

    def _processes(self, host: str) -> list[str]:
        """The names of a host's workers and servers."""
        servers = (at for at, name in enumerate(self._server_hosts) if name == host)
        return [
            *(f"worker-{rank}" for rank in self._hosts.ranks(host)),
            *(f"server-{number}" for number in servers),
        ]

    def _answer(self, name: str, knock: Knock) -> None:
        joined = self._joined.get(name)
        if joined is None:
            if self._over is not None and self._over.again:
                return  # It asks again, and the coordinator of the continued run answers.
            words = self._objection(knock)
            if words:
                self._hub.send(name, Rejected(words))
                self._say(f"{knock.host} was not admitted: {words}")
                return
            number = self._hosts.names.index(knock.host)
            joined = self._joined[name] = _JoinedHost(knock.host, number, self._clock())
            self._admissions += 1
            # Numbers of processes of an agent begin with this one, so a host that joins again has
            # greater incarnations than before (`docs/decisions/0044-incarnations.md`).
            joined.admission = self._admissions
            self._recorder.event("host", {"name": knock.host, "words": "joined"})
            self._absent.pop(knock.host, None)
            if self._begun:
                self._returned.add(knock.host)
                self._hub.send("agent-0", HostReturned(knock.host))
        # Also if it has joined already: the first answer may have been lost, and the agent repeats
        # its request until there is one.
        self._hub.send(name, Admitted(joined.number, self._assignment, joined.admission))

    def _objection(self, knock: Knock) -> str:
        """Why this host is not admitted; empty if it is."""
        others = self._hosts.names[1:]
        if self._over is not None:
            return "the run is over"
        if knock.host not in others:
            return (
                f"this run waits for {', '.join(others)}, not for {knock.host}: choose one of them "
                "with --as"
            )
        if any(joined.host == knock.host for joined in self._joined.values()):
            return f"{knock.host} has joined already"
        if self._begun and not self._takes_back:
            return f"the run has begun, and {self._strategy} does not admit workers after that"
        count = len(self._hosts.ranks(knock.host))
        if knock.workers not in {None, count}:
            return f"{knock.host} has {count} workers in this run, not {knock.workers}"
        return difference(self._facts, knock.facts)

    def _store(self, name: str, part: Part) -> None:
        """Write a piece of a file that another host sends."""
        if not _FILE.fullmatch(part.name):
            return
        half = self._folder / f"{part.name}.half"
        there = half.stat().st_size if half.exists() and part.offset else 0
        # A piece is sent again if its confirmation was late; it must not be appended twice.
        if part.offset == there:
            with half.open("ab" if part.offset else "wb") as file:
                file.write(part.piece)
            there += len(part.piece)
            if there == part.size:
                # Under its name only when it is complete: a run counts as finished if the model's
                # file exists.
                half.replace(self._folder / part.name)
        self._hub.send(name, Stored(part.name, there))

    def complete(self, status: Status, joined: Container[int]) -> Status:
        """Add the missing ranks and the coordinator's address to a status."""
        self._begun = self._begun or status.started
        missing = "" if status.started else self._hosts.missing(joined)
        return msgspec.structs.replace(status, missing=missing, outside=self._hub.outside)

    def check_timers(self, now: float) -> None:
        """Report connections with a wrong key, and dismiss hosts without heartbeats."""
        for address in self._hub.take_refused():
            self._say(f"a connection from {address} was refused: its key is not this run's key")
        for name, joined in list(self._joined.items()):
            silent = now - joined.heard
            self._name(joined, silent)
            if silent > self._patience:
                words = f"no heartbeat from its host for {silent:.0f} s"
                if self._note is not None:
                    # The clock has decided it, not a message: without this entry a successor would
                    # expect the host.
                    self._note("", HostLost(name, words))
                self.lose(name, words)

    def _name(self, joined: _JoinedHost, silent: float) -> None:
        """Name a host whose agent is silent, and report when it is back."""
        if (silent > _NAMED) == joined.is_named:
            return
        joined.is_named = not joined.is_named
        words = f"the agent of {joined.host} is back"
        if joined.is_named:
            words = (
                f"the agent of {joined.host} has sent no heartbeat for {silent:.0f} s: it is "
                "stopped, or its host is cut off"
            )
        self._recorder.event("host", {"name": joined.host, "words": words})
        self._hub.send("agent-0", Warn(words))

    def begin(self) -> None:
        """Note that all workers have joined."""
        self._begun = True

    def lose(self, agent: str, words: str) -> None:
        """Note that the host of an agent is lost."""
        if agent in self._joined:
            self._dismiss(agent, self._joined[agent], words)

    def resume(self) -> None:
        """Continue for a predecessor: no host counts as silent for the time without one."""
        for joined in self._joined.values():
            joined.heard = self._clock()

    def _repeat(self) -> None:
        """Send the agent again which hosts are lost or have returned."""
        for joined, words in self._absent.values():
            self._report_ends(joined, words)
        for host in sorted(self._returned - self._absent.keys()):
            self._hub.send("agent-0", HostReturned(host))

    def _dismiss(self, name: str, joined: _JoinedHost, words: str) -> None:
        """Remove a host that is lost, and report the ends of its workers and servers."""
        del self._joined[name]
        self._gone[name] = f"the run continues without {joined.host}: {words}"
        self._recorder.event("host", {"name": joined.host, "words": words})
        # Kept, because the reports below may be lost with this coordinator: a restarted one is
        # asked to repeat them.
        self._absent[joined.host] = (joined, words)
        self._report_ends(joined, words)

    def _report_ends(self, joined: _JoinedHost, words: str) -> None:
        for process in self._processes(joined.host):
            # The end counts from the last heartbeat. With the moment at which it was noticed,
            # processes that failed because of it would seem to have failed first.
            if process not in joined.ended and self._over is None:
                self._hub.send(
                    "agent-0", Ended(process, joined.host, 0, -9, words=words, at=joined.heard)
                )

    def disband(self, over: Disband) -> None:
        """Forward to all other hosts that the run is over."""
        self._over = over
        for name in self._joined:
            self._hub.send(name, over)

    def _say(self, words: str) -> None:
        """Show a message to the user of the first host, each message once."""
        if words not in self._reported:
            self._reported.add(words)
            self._recorder.event("admission", {"words": words})
            self._hub.send("agent-0", Warn(words))

    def close(self) -> None:
        """Remove files that did not arrive completely."""
        for half in self._folder.glob("model*.safetensors.half"):
            half.unlink(missing_ok=True)
