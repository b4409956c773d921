"""The agent of a host that joins a run: starts that host's workers and ends them with the run.

It asks the coordinator for admission and receives the first host's assignment, in which it replaces
what belongs to this host (script, folder, addresses, devices). A preflight process checks that the
job is the same here. Then the agent watches its workers and reports to the coordinator how each of
them ended; the first host decides what follows.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from manyhands.cluster import Cluster
from manyhands.failure import RunFailed
from manyhands.faults import Faults
from manyhands.files.run_folders import new_folder
from manyhands.live.agent.coordinator_link import CoordinatorLink, FirstHostLost
from manyhands.live.agent.faults.injection import FaultInjection
from manyhands.live.agent.preflight import Findings, findings_file
from manyhands.live.agent.progress_line import ProgressLine
from manyhands.live.agent.recovery.kept_checkpoints import KeptCheckpoints
from manyhands.live.agent.recovery.succession import next_run
from manyhands.live.agent.recovery.worker_returns import WorkerReturns
from manyhands.live.agent.worker_output import WorkerOutput
from manyhands.live.assignment import Assignment
from manyhands.live.hosts.compatibility import facts_of_host
from manyhands.live.hosts.host_list import Hosts
from manyhands.live.processes.descriptors import raise_descriptors
from manyhands.live.processes.fork_server import environment, fork_server
from manyhands.live.processes.host_processes import HostProcesses
from manyhands.live.processes.parent_death import signals_raise
from manyhands.live.processes.private_folder import private_folder
from manyhands.live.processes.supervision import Process, await_end, eject, end
from manyhands.transport.control import WatchedLine
from manyhands.transport.interfaces import address_towards, resolve, write_place
from manyhands.transport.security import JobKey
from manyhands.transport.shared.memory import can_share, reserve
from manyhands.wire import Status
from manyhands.wire.joining import Admitted, Disband, Knock, Rejected, Withdraw
from manyhands.wire.leasing import Eject

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from manyhands.live.processes.fork_server import ForkServer
    from manyhands.script.origin import Origin

CANNOT = "this host cannot take part:"
"""What the message of a host begins with that was admitted and has withdrawn."""
_PREFLIGHT = "manyhands.live.agent.preflight"
_SERVER = "manyhands.live.server.process"
_WORKER = "manyhands.live.worker.process"
_POLL = 0.1
_GRACE = 1.0
_RESTARTS = 1000
"""How many times servers may be restarted on this host."""
_KNOCK_EVERY = 1.0
"""Seconds until a request for admission is repeated."""
_SAY_EVERY = 15.0
"""Seconds between two messages that the first host does not answer."""
_ANSWER_WITHIN = 120.0
"""Seconds in which the first host must answer a request for admission."""


class WentBack(RunFailed):
    """The run goes back to a checkpoint, or went on without this host: it is to join again."""


class NoAnswer(RunFailed):
    """No run was found at the address that was given."""


@dataclass(frozen=True)
class Application:
    """A host's request to join a run, as its user gave it."""

    address: str
    port: int
    key: Path
    host: str
    """The name of this host in the run."""
    script: Path
    workers: int | None = None
    """Workers on this host, if the user gave a number."""
    folder: Path | None = None
    """Folder for the logs; by default one in `runs`, named after the run and this host."""
    answer_within: float = _ANSWER_WITHIN
    """Seconds in which the first host must answer."""
    continues: bool = False
    """Whether this host continues the run if the first host is lost: see `succession`."""

    @property
    def place(self) -> str:
        """Address and port at which the first host listens."""
        return write_place(self.address, self.port)


def join(application: Application) -> None:
    """Join a run and return when it is over.

    Raises:
        NoAnswer: no run was found at that address.
        TakesOver: the first host is lost, and this host is to continue the run.
        RunFailed: the host was not admitted, the run failed, or the first host is lost.
        KeyboardInterrupt: the user interrupted; this host's workers are ended first.
    """
    try:
        application = replace(application, address=resolve(application.address, application.port))
    except OSError as error:
        raise NoAnswer(f"there is no host {application.address}: {error.strerror}") from None
    with contextlib.ExitStack() as ending:
        loaded: ForkServer | None = None
        kept: KeptCheckpoints | None = None

        def memory_for(theirs: Assignment) -> tuple[str, ...]:
            nonlocal kept
            if kept is None and theirs.checkpoint_memory:
                kept = KeptCheckpoints(theirs.workers)
                ending.callback(kept.close)
            return () if kept is None else kept.paths

        def fork_server_for(
            settings: Mapping[str, str], preloads: Sequence[str]
        ) -> ForkServer | None:
            nonlocal loaded
            if loaded is None or loaded.poll() is not None:
                loaded = ending.enter_context(fork_server(settings, preloads))
            return loaded

        while True:
            try:
                _take_part(application, fork_server_for, memory_for)
            except WentBack as word:
                _say(f"{word}; this host joins again")
            except FirstHostLost as lost:
                if not application.continues:
                    raise
                following = next_run(lost, _say)
                ending.callback(following.key.unlink, missing_ok=True)
                _say(f"{following.host} continues the run; this host joins it")
                application = replace(
                    application,
                    address=following.address,
                    port=following.port,
                    key=following.key,
                )
            else:
                return


def _take_part(
    application: Application,
    fork_server_for: Callable[[Mapping[str, str], Sequence[str]], ForkServer | None],
    memory_for: Callable[[Assignment], tuple[str, ...]],
) -> None:
    """Join a run, or its continuation, and return when it is over.

    Args:
        application: the request to join.
        fork_server_for: returns the fork server for an environment and modules that it loads.
        memory_for: returns where this host's workers open the memory for checkpoints of a run.
    """
    name = f"agent-{application.host}.{secrets.token_hex(4)}"
    key = JobKey.read(application.key)
    line = WatchedLine(f"tcp://{application.place}", name, key)
    journals: tuple[int, ...] = ()
    try:
        with signals_raise(), private_folder() as private:
            admitted = _knock(application, line)
            theirs = msgspec.json.decode(admitted.assignment, type=Assignment)
            journals = _reserve_journals(theirs, application.host)
            theirs = msgspec.structs.replace(theirs, checkpoint_memory=memory_for(theirs))
            assignment = _own(theirs, application, private, journals)
            ranks = Hosts(theirs.hosts).ranks(application.host)
            _say(f"joined {application.place} as {application.host}: workers {_span(ranks)}")
            settings = environment(Cluster.local().cores, len(ranks))
            loaded = fork_server_for(settings, theirs.preloads)
            raise_descriptors()
            host_processes = HostProcesses(
                application.host,
                private / "assignment.json",
                Path(assignment.folder),
                settings,
                loaded,
                admitted.admission,
                assignment.patience,
            )
            _HostRun(assignment, admitted.number, ranks, host_processes, line).execute()
    finally:
        # Messages that are still queued are sent.
        line.close(linger=2.0)
        for descriptor in journals:
            os.close(descriptor)


def _knock(application: Application, line: WatchedLine) -> Admitted:
    """Ask for admission and wait for the answer."""
    facts = facts_of_host(application.script)
    knock = Knock(application.host, application.workers, facts)
    begun, shown, knocked = time.monotonic(), 0, 0
    while True:
        # Repeated, because a coordinator that is restarted meanwhile may not have received it.
        if time.monotonic() - begun >= knocked * _KNOCK_EVERY:
            knocked += 1
            line.send(knock)
        for message in line.receive(_POLL):
            if isinstance(message, Admitted):
                return message
            if isinstance(message, Rejected):
                raise RunFailed(f"{application.place} did not admit this host: {message.words}")
        waited = time.monotonic() - begun
        if line.is_refused:
            raise RunFailed(
                f"{application.place} refused the connection: the key in {application.key} is not "
                "the key of that run; copy the run's key file from the first host"
            )
        if waited > application.answer_within:
            raise NoAnswer(
                f"no answer from {application.place} within {waited:.0f} s; check that the run has "
                "started there, and that this host can reach that address and port"
            )
        if waited > 2.0 + shown * _SAY_EVERY:
            shown += 1
            _say(f"waiting for {application.place}: {_reach(application)}")


def _reach(application: Application) -> str:
    """Why the first host may not have answered, by a connection to its port."""
    try:
        with socket.create_connection((application.address, application.port), timeout=1.0):
            return "something listens there but does not answer as a run; is it the run's port?"
    except ConnectionRefusedError:
        return (
            f"nothing listens at port {application.port} there; has the run started, and is this "
            "the port that it printed?"
        )
    except OSError as error:
        return f"no connection ({error.strerror or error}); is a firewall or another network there?"


def _reserve_journals(theirs: Assignment, host: str) -> tuple[int, ...]:
    """Shared memory for the journals of this host's servers; it outlives them, not this process.

    All servers have an entry, because they are counted over all hosts; one of another host takes no
    memory.
    """
    if host not in theirs.server_hosts or not can_share():
        return ()
    return tuple(reserve() for _ in theirs.server_hosts)


def _own(
    theirs: Assignment, application: Application, private: Path, journals: tuple[int, ...]
) -> Assignment:
    """The first host's assignment with the script, folder, addresses and key of this host."""
    host = application.host
    folder = application.folder
    if folder is None:
        try:
            folder = new_folder(Path("runs") / f"{Path(theirs.folder).name}-{host}")
        except ValueError as error:
            raise RunFailed(str(error)) from error
    if any(folder.glob("model*.safetensors")):
        raise RunFailed(f"{folder} already holds a run; choose another folder or remove this one")
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
        journals=journals,
        address=address_towards(application.address, application.port),
        key=str(application.key.resolve()),
    )
    assignment.write(private / "assignment.json")
    return assignment


def _own_origin(theirs: Origin, script: Path) -> Origin:
    """The origin of the job in this host's copy of the script, with the same module search path."""
    levels = 1
    if Path(theirs.script).is_relative_to(theirs.search or "/"):
        levels = len(Path(theirs.script).relative_to(theirs.search or "/").parts)
    return msgspec.structs.replace(
        theirs,
        script=str(script),
        search=str(script.parents[min(levels, len(script.parents)) - 1]) if theirs.search else "",
        argv=(str(script), *theirs.argv[1:]),
    )


class _HostRun:
    """The processes of this host in a run, from their start to their end."""

    def __init__(
        self,
        assignment: Assignment,
        number: int,
        ranks: range,
        host_processes: HostProcesses,
        line: WatchedLine,
    ) -> None:
        self._assignment = assignment
        self._ranks = ranks
        self._host_processes = host_processes
        self._line = line
        self._display: ProgressLine | None = None
        self._preflight: Process | None = None
        self._workers: dict[str, Process] = {}
        self._servers: dict[str, Process] = {}
        self._link = CoordinatorLink(assignment, number, line)
        # Warnings of this host's workers: the first host has no log of them.
        self._output = WorkerOutput(Path(assignment.folder) / "logs", self._show, time.monotonic)
        self._faults = self._injection()
        self._over: Disband | None = None
        self._begun = False
        """Whether all workers of the run have joined."""
        self._returns = WorkerReturns(len(ranks))
        self._restarts = 0

    def _injection(self) -> FaultInjection:
        """The faults that concern this host."""
        assignment, servers = self._assignment, self._assignment.server_hosts
        names = {f"worker-{rank}" for rank in self._ranks}
        names |= {f"server-{at}" for at, host in enumerate(servers) if host == assignment.host}
        count = 0 if assignment.peers else len(assignment.servers)
        faults = Faults.read(assignment.faults).drawn(assignment.workers, count)
        return FaultInjection(faults, names, self._find, self._link.event, _say)

    def _show(self, words: str) -> None:
        if self._display is not None:
            self._display.say(words)

    def _fork_worker(self, name: str, log: str) -> None:
        rank = name.removeprefix("worker-")
        self._workers[name] = self._host_processes.fork(name, _WORKER, rank, log)
        self._output.follow(int(rank), log)

    def _find(self, name: str) -> Process | None:
        return self._workers.get(name) or self._servers.get(name)

    @property
    def _members(self) -> list[Process]:
        return [*self._servers.values(), *self._workers.values()]

    def execute(self) -> None:
        """Start the processes, watch them and end them."""
        try:
            self._host_processes.await_fork_server(self._follow)
            self._run_preflight()
            self._start_servers()
            for rank in self._ranks if self._over is None else ():
                self._fork_worker(f"worker-{rank}", f"worker-{rank}")
            while self._over is None:
                self._follow()
        except BaseException as error:
            if not self._workers:
                self._line.send(Withdraw(str(error) or type(error).__name__))
            raise
        finally:
            # Servers leave when the coordinator dismisses them, and send their traces then.
            self._faults.end()
            finished = self._over is not None and not self._over.failed
            await_end(self._servers.values(), _GRACE if finished else 0.0)
            processes = [*filter(None, [self._preflight]), *self._members]
            end(processes, _GRACE)
            self._link.report_ends(self._members)
            self._link.leave()
            for process in processes:
                process.close()
            self._output.end(failed=not finished)
            if self._over is None or not (self._over.again or self._over.rejoins):
                self._host_processes.close()
            if self._display is not None:
                self._display.end()
        if self._over.failed and self._over.rejoins:
            raise WentBack(self._over.words)
        if self._over.failed and self._over.again:
            raise WentBack(f"{self._over.words}; all go back to the last checkpoint")
        if self._over.failed:
            raise RunFailed(f"the run failed: {self._over.words}")

    def _start_servers(self) -> None:
        for number, host in enumerate(self._assignment.server_hosts):
            if host == self._assignment.host and self._over is None:
                name = f"server-{number}"
                self._servers[name] = self._host_processes.fork(name, _SERVER, str(number))

    def _run_preflight(self) -> None:
        """Check in a process of its own that this host can take part; note its devices."""
        self._preflight = self._host_processes.fork("preflight", _PREFLIGHT, str(len(self._ranks)))
        while self._preflight.poll() is None and self._over is None:
            self._follow()
        if self._over is not None:
            return
        file = findings_file(self._assignment)
        gone = self._preflight.poll()
        if gone is not None and not file.exists():
            raise RunFailed(f"{CANNOT} {self._host_processes.words(gone)}")
        findings = msgspec.json.decode(file.read_bytes(), type=Findings)
        if findings.words:
            raise RunFailed(f"{CANNOT} {findings.words}")
        self._display = ProgressLine(findings.budget, findings.seconds, time.monotonic)
        complete = msgspec.structs.replace(self._assignment, devices=findings.devices)
        complete.write(Path(complete.private) / "assignment.json")

    def _follow(self) -> None:
        """Process messages of the coordinator, and report on this host's workers."""
        for message in self._line.receive(_POLL):
            self._link.receive(message)
            if isinstance(message, Status):
                self._begun = self._begun or message.started
                self._returns.follow(message)
                self._faults.follow(message)
                if self._display is not None:
                    self._display.show(message)
            elif isinstance(message, Eject):
                eject(message, {**self._workers, **self._servers})
            elif isinstance(message, Disband):
                self._over = message
        if self._over is None:
            self._faults.look()
            self._output.look()
            self._look_after_fork_server()
            self._start_again()
            ended = self._restart_servers()
            self._link.beat([*self._workers.values(), *ended])

    def _look_after_fork_server(self) -> None:
        self._host_processes.watch_fork_server(_say)
        process = self._host_processes.fork_server
        exit_ = None if process is None else process.poll()
        if exit_ is not None and self._host_processes.replace_fork_server(exit_):
            _say(f"{exit_}; a new fork server is started")

    def _restart_servers(self) -> list[Process]:
        """Restart servers that were killed: each continues from its journal.

        Returns:
            The servers that have ended for good.
        """
        ended = []
        for name, server in list(self._servers.items()):
            exit_ = server.poll()
            if exit_ is None:
                continue
            restarts = self._assignment.restarts_servers and self._restarts < _RESTARTS
            if not (exit_.killed and restarts):
                ended.append(server)
            else:
                self._restarts += 1
                _say(f"{exit_}; it is restarted")
                server.close()
                number, log = name.removeprefix("server-"), f"{name}.{self._restarts}"
                self._servers[name] = self._host_processes.fork(name, _SERVER, number, log)
        return ended

    def _start_again(self) -> None:
        """Restart workers that were killed, if the run takes them back.

        Before it has begun no state is lost with them, and the first host waits for them.
        """
        assignment = self._assignment
        rigid = assignment.leasing is None and not assignment.elastic
        leases = assignment.leasing is not None
        takes_back = assignment.takes_back if leases else assignment.origin.loop is None
        for name, worker in list(self._workers.items()) if not rigid else ():
            exit_ = worker.poll()
            if exit_ is None or not exit_.killed or name in self._faults.stays_away:
                continue
            if (self._begun and not takes_back) or not self._returns.are_allowed:
                continue
            if self._begun:
                self._link.report_end(exit_)
                _say(f"{exit_}; it is restarted")
            else:
                _say(f"{exit_} before all workers had joined; it is restarted")
            worker.close()
            self._fork_worker(name, f"{name}.{self._returns.add()}")


def _span(ranks: range) -> str:
    if not ranks:
        return "none, for servers"
    return f"{ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else f"{ranks[0]}"


def _say(words: str) -> None:
    sys.stderr.write(f"manyhands: {words}\n")
    sys.stderr.flush()
