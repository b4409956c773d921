"""The agent of another host: it joins a run, starts that host's workers, and ends them with it.

It asks the coordinator to be let in and gets what the first host's processes were told. What is
this host's own (script, folder, addresses, devices) it puts in its place. A scout finds out whether
the job is the same here. From then on the agent watches its workers as every agent does, and tells
the coordinator how each of them ended; what follows from that is decided on the first host.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from manyhands.cluster import Cluster
from manyhands.failure import RunFailed
from manyhands.files.run_folders import new_folder
from manyhands.live.agent.coordinator_link import CoordinatorLink
from manyhands.live.agent.preflight import Findings, findings_file
from manyhands.live.agent.progress_line import ProgressLine
from manyhands.live.assignment import Assignment
from manyhands.live.hosts.compatibility import facts_of_host
from manyhands.live.hosts.host_list import Hosts
from manyhands.live.processes.descriptors import raise_descriptors
from manyhands.live.processes.fork_server import environment, nursery
from manyhands.live.processes.host_processes import HostProcesses, private_folder
from manyhands.live.processes.parent_death import signals_raise
from manyhands.live.processes.supervision import Process, end
from manyhands.transport.control import WatchedLine
from manyhands.transport.interfaces import address_towards
from manyhands.transport.security import JobKey
from manyhands.wire import Status
from manyhands.wire.joining import Admitted, Disband, Knock, Rejected, Withdraw
from manyhands.wire.leasing import Eject

if TYPE_CHECKING:
    from manyhands.script.origin import Origin

_SCOUT = "manyhands.live.agent.preflight"
_WORKER = "manyhands.live.worker.process"
_POLL = 0.1
_GRACE = 1.0
_ANSWER_WITHIN = 120.0
"""Seconds in which the first host must answer one who asks to be let in."""


@dataclass(frozen=True)
class Application:
    """A host that wants to join, as its user said."""

    address: str
    port: int
    key: Path
    host: str
    """Under which name."""
    script: Path
    workers: int | None = None
    """How many, if the user said."""
    folder: Path | None = None
    """For its logs; by default one in `runs`, named like the run and this host."""

    @property
    def place(self) -> str:
        """Where the first host listens."""
        return f"{self.address}:{self.port}"


def join(application: Application) -> None:
    """Take part in a run until it is over.

    Raises:
        RunFailed: it was not let in, the run failed, or the first host is gone.
        KeyboardInterrupt: the user interrupted; this host's workers are ended first.
    """
    name = f"agent-{application.host}.{secrets.token_hex(4)}"
    key = JobKey.read(application.key)
    line = WatchedLine(f"tcp://{application.place}", name, key)
    try:
        with signals_raise(), private_folder() as private:
            admitted = _knock(application, line)
            theirs = msgspec.json.decode(admitted.assignment, type=Assignment)
            assignment = _own(theirs, application, private)
            ranks = Hosts(theirs.hosts).ranks(application.host)
            _say(f"joined {application.place} as {application.host}: workers {_span(ranks)}")
            settings = environment(Cluster.local().cores, len(ranks))
            with nursery(settings) as loaded:
                raise_descriptors()
                crew = HostProcesses(
                    application.host,
                    private / "assignment.json",
                    Path(assignment.folder),
                    settings,
                    loaded,
                    admitted.admission,
                )
                _Part(assignment, admitted.number, ranks, crew, line).to_its_end()
    finally:
        # The last words still leave.
        line.close(linger=2.0)


def _knock(application: Application, line: WatchedLine) -> Admitted:
    """Ask until there is an answer."""
    facts = facts_of_host(application.script)
    knock = Knock(application.host, application.workers, facts)
    begun, told = time.monotonic(), False
    line.send(knock)
    while True:
        for message in line.receive(_POLL):
            if isinstance(message, Admitted):
                return message
            if isinstance(message, Rejected):
                raise RunFailed(f"{application.place} did not let this host in: {message.words}")
        waited = time.monotonic() - begun
        if line.is_refused:
            raise RunFailed(
                f"{application.place} refused the connection: the key in {application.key} is not "
                "that run's; copy the key file of the run from the first host"
            )
        if waited > _ANSWER_WITHIN:
            raise RunFailed(f"nobody answered at {application.place} for {waited:.0f} s")
        if waited > 2.0 and not told:
            told = True
            _say(f"waiting for {application.place} to answer")


def _own(theirs: Assignment, application: Application, private: Path) -> Assignment:
    """The assignment with what is this host's own."""
    host = application.host
    folder = application.folder
    if folder is None:
        try:
            folder = new_folder(Path("runs") / f"{Path(theirs.folder).name}-{host}")
        except ValueError as error:
            raise RunFailed(str(error)) from error
    if any(folder.glob("model*.safetensors")):
        raise RunFailed(f"{folder} holds a run already; name another folder or remove it")
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    assignment = msgspec.structs.replace(
        theirs,
        origin=_own_origin(theirs.origin, application.script.resolve()),
        host=host,
        folder=str(folder.resolve()),
        coordinator=f"tcp://{application.place}",
        private=str(private),
        servers=tuple(f"ipc://{private}/{Path(at).name}" for at in theirs.servers),
        agent=os.getpid(),
        devices=(),
        address=address_towards(application.address, application.port),
        key=str(application.key.resolve()),
    )
    assignment.write(private / "assignment.json")
    return assignment


def _own_origin(theirs: Origin, script: Path) -> Origin:
    """The same job in this host's copy of the script, found among modules in the same way."""
    levels = 1
    if Path(theirs.script).is_relative_to(theirs.search or "/"):
        levels = len(Path(theirs.script).relative_to(theirs.search or "/").parts)
    return msgspec.structs.replace(
        theirs,
        script=str(script),
        search=str(script.parents[min(levels, len(script.parents)) - 1]) if theirs.search else "",
        argv=(str(script), *theirs.argv[1:]),
    )


class _Part:
    """This host's part in a run, from the start of its workers to their end."""

    def __init__(
        self,
        assignment: Assignment,
        number: int,
        ranks: range,
        crew: HostProcesses,
        line: WatchedLine,
    ) -> None:
        self._assignment = assignment
        self._ranks = ranks
        self._crew = crew
        self._line = line
        self._display: ProgressLine | None = None
        self._scout: Process | None = None
        self._workers: dict[str, Process] = {}
        self._liaison = CoordinatorLink(assignment, number, line)
        self._over: Disband | None = None
        self._begun = False
        """Whether all workers of the run have joined."""
        self._returns = 0

    def to_its_end(self) -> None:
        """Start, watch, end."""
        try:
            self._crew.await_nursery(self._follow)
            self._look_around()
            for rank in self._ranks if self._over is None else ():
                name = f"worker-{rank}"
                self._workers[name] = self._crew.fork(name, _WORKER, str(rank))
            while self._over is None:
                self._follow()
        except BaseException as error:
            if not self._workers:
                self._line.send(Withdraw(str(error) or type(error).__name__))
            raise
        finally:
            processes = [*filter(None, [self._scout]), *self._workers.values()]
            end(processes, _GRACE)
            self._liaison.tell_ends(self._workers.values())
            self._liaison.last_words()
            for process in processes:
                process.close()
            self._crew.close()
            if self._display is not None:
                self._display.end()
        if self._over.failed:
            raise RunFailed(f"the run has failed: {self._over.words}")

    def _look_around(self) -> None:
        """Have a scout see whether this host can take part; tell the workers what it found."""
        self._scout = self._crew.fork("scout", _SCOUT, str(len(self._ranks)))
        while self._scout.poll() is None and self._over is None:
            self._follow()
        if self._over is not None:
            return
        file = findings_file(self._assignment)
        gone = self._scout.poll()
        if gone is not None and not file.exists():
            raise RunFailed(self._crew.words(gone))
        findings = msgspec.json.decode(file.read_bytes(), type=Findings)
        if findings.words:
            raise RunFailed(f"this host cannot take part: {findings.words}")
        self._display = ProgressLine(findings.budget, findings.seconds, time.monotonic)
        told = msgspec.structs.replace(self._assignment, devices=findings.devices)
        told.write(Path(told.private) / "assignment.json")

    def _follow(self) -> None:
        """Hear the coordinator, and tell it how this host's workers are."""
        for message in self._line.receive(_POLL):
            self._liaison.heard(message)
            if isinstance(message, Status):
                self._begun = self._begun or message.started
                if self._display is not None:
                    self._display.show(message)
            elif isinstance(message, Eject) and message.name in self._workers:
                self._workers[message.name].eject(message.words)
            elif isinstance(message, Disband):
                self._over = message
        if self._over is None:
            self._start_again()
            self._liaison.beat(self._workers.values())

    def _start_again(self) -> None:
        """Start workers again that were killed before the run began: nothing is lost with them.

        Should it have begun after all, the coordinator takes them back or has them ended.
        """
        if self._begun or self._assignment.leasing is None:
            return
        for name, worker in list(self._workers.items()):
            exit_ = worker.poll()
            killed = exit_ is not None and exit_.code < 0 and exit_.report is None
            if not killed or self._returns >= 2 * len(self._ranks):
                continue
            self._returns += 1
            _say(f"{exit_} before all workers had joined; it is started again")
            worker.close()
            rank = name.removeprefix("worker-")
            log = f"{name}.{self._returns}"
            self._workers[name] = self._crew.fork(name, _WORKER, rank, log)


def _span(ranks: range) -> str:
    return f"{ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else f"{ranks[0]}"


def _say(words: str) -> None:
    sys.stderr.write(f"manyhands: {words}\n")
    sys.stderr.flush()
