"""The agent of the first host: starts the processes of a run, watches them and ends them.

It starts the coordinator, has a fork server fork the servers and workers, shows one progress line,
and ends every process when the run is over, whether it finished, failed or was interrupted. If the
agent itself is killed, the kernel kills its workers and the coordinator reports it.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from manyhands.failure import ProcessKilled, RunFailed
from manyhands.files.checkpoints import CHECKPOINTS
from manyhands.files.checkpoints.writing import sweep
from manyhands.live.agent.checks import (
    check_request,
    check_stored,
    explain_full_disk,
    pin_start,
    warnings_before,
)
from manyhands.live.agent.codec_check import codec_note
from manyhands.live.agent.faults.injection import FaultInjection
from manyhands.live.agent.leasing import leasing_of
from manyhands.live.agent.progress_line import ProgressLine
from manyhands.live.agent.recovery import elasticity
from manyhands.live.agent.recovery.coordinator_process import COORDINATOR, CoordinatorProcess
from manyhands.live.agent.recovery.kept_checkpoints import unneeded
from manyhands.live.agent.recovery.last_checkpoint import (
    carry_through,
    continuing,
    from_weights,
    goes_back,
    stored_before_leaving,
)
from manyhands.live.agent.recovery.worker_returns import WorkerReturns
from manyhands.live.agent.remote_process import RemoteProcess, RemoteWorkers
from manyhands.live.agent.trial_batch import try_out
from manyhands.live.agent.worker_output import WorkerOutput
from manyhands.live.assignment import Assignment
from manyhands.live.devices import devices
from manyhands.live.hosts.compatibility import facts_of_host, facts_of_job
from manyhands.live.hosts.invitation import inviting
from manyhands.live.member.trace_files import TraceFiles
from manyhands.live.processes.descriptors import raise_descriptors
from manyhands.live.processes.fork_server import ForkServer, environment, fork_server, renewed
from manyhands.live.processes.host_processes import FORK_SERVER, HostProcesses
from manyhands.live.processes.parent_death import signals_raise
from manyhands.live.processes.private_folder import private_folder
from manyhands.live.processes.supervision import Exit, Process, eject, end, first_failure
from manyhands.script.origin import override
from manyhands.trace import Recorder, live_header, trace_file
from manyhands.transport.collectives import LOOPBACK, serve_store
from manyhands.transport.control import Line
from manyhands.transport.shared.memory import can_share, reserve
from manyhands.wire import Status, Warn
from manyhands.wire.joining import Disband, Ended, HostReturned, Missed
from manyhands.wire.leasing import Eject, Lost

if TYPE_CHECKING:
    from manyhands.live.hosts.invitation import Invitation
    from manyhands.live.request import Request

_POLL = 0.1
_GRACE = 1.0
_CAUSE_WITHIN = 3.0
"""Seconds to wait for the process whose end made the others fail."""
_REMEDY = (
    "; the others cannot go on without it, and there is no checkpoint to go back to: train with "
    "--checkpoint 10min, or --checkpoint '1min in memory'"
)
_SERVER = "manyhands.live.server.process"
_WORKER = "manyhands.live.worker.process"
_RESTARTS = 1000
"""How many times servers may be restarted in one run."""


def launch(request: Request) -> None:
    """Execute a run; return when it has finished.

    Raises:
        RunFailed: a process of the run failed; the message ends with its traceback.
        KeyboardInterrupt: the user interrupted; all processes are ended first.
    """
    warning = check_request(request)
    surroundings = (_environment(request), request.preloads)
    invited = (request.folder, request.hosts, Path(request.origin.script), request.key)
    with fork_server(*surroundings) as loaded, inviting(*invited) as invitation:
        request.job.make_ready()
        job = override(request.job, request.overrides)
        one_weight = not request.strategy.needs(request.workers).collectives
        one_weight = (request.workers > 1 and one_weight) or job.micro_batch is not None
        about = (job, request.workers, devices(request.here))
        uneven = try_out(*about, one_weight=one_weight, strategy=request.strategy)
        request = pin_start(from_weights(request))
        notes = (warning, codec_note(request, job), continuing(request), unneeded(request), uneven)
        with explain_full_disk(request.folder):
            attempt = partial(_attempt, loaded=loaded, invitation=invitation)
            carry_through(request, [*filter(None, notes)], attempt)


def _attempt(
    request: Request,
    notes: list[str],
    loaded: ForkServer | None,
    invitation: Invitation | None,
) -> None:
    if invitation is not None:
        invitation.write()
    with renewed(loaded, _environment(request), request.preloads) as alive:
        _launch(request, alive, invitation, notes)


def _launch(
    request: Request,
    loaded: ForkServer | None,
    invitation: Invitation | None,
    notes: list[str],
) -> None:
    # One descriptor for each watched process. The fork server keeps the limit from before.
    raise_descriptors()
    (request.folder / "logs").mkdir(exist_ok=True)
    head = live_header("agent", 0, clock=time.monotonic, wall=time.time, host=request.host)
    job = override(request.job, request.overrides)
    display = ProgressLine(job.budget, job.seconds, time.monotonic)
    files = TraceFiles(display.say)
    for words in notes:
        display.say(words)
    sink = partial(files.append, trace_file(request.folder, head))
    recorder = Recorder(head, sink, time.monotonic)
    for setting in request.settings:
        recorder.setting(setting.name, setting.value, setting.source)
    if job.budget is not None:
        recorder.event("begin", {"samples": str(job.budget)})
    recorder.flush()
    try:
        with private_folder() as private, signals_raise():
            _Run(request, private, recorder, display, loaded, invitation).execute()
            check_stored(request.folder)
    except RunFailed as failure:
        recorder.event("end", {"status": "failed", "words": _first_line(failure)})
        raise
    except BaseException as error:
        words = f"interrupted ({type(error).__name__})"
        recorder.event("end", {"status": "interrupted", "words": words})
        raise
    else:
        recorder.event("end", {"status": "finished", "words": ""})
    finally:
        sweep(request.folder / CHECKPOINTS)  # a part that a full disk left
        recorder.flush()
        files.close()
        display.end()


class _Run:
    """The processes of one run, from their start to their end."""

    def __init__(
        self,
        request: Request,
        private: Path,
        recorder: Recorder,
        display: ProgressLine,
        loaded: ForkServer | None,
        invitation: Invitation | None,
    ) -> None:
        self._request = request
        self._private = private
        self._recorder = recorder
        self._display = display
        self._invitation = invitation
        self._needs = request.strategy.needs(request.workers)
        self._elastic = self._needs.collectives and not elasticity.rigidity(request)
        self._row = elasticity.replica_size(request) if self._elastic else 1
        self._takes_back = elasticity.takes_back(request)
        stores = override(request.job, request.overrides).checkpoint is not None
        self._recovers = self._needs.leases or self._elastic or stores
        self._place = invitation.address(request.listen) if invitation else (LOOPBACK, 0)
        assignment, env = private / "assignment.json", _environment(request)
        about = (request.host, assignment, request.folder, env, loaded)
        self._host_processes = HostProcesses(*about, patience=request.patience)
        logs = request.folder / "logs"
        self._output = WorkerOutput(logs, display.say, time.monotonic, quiet=request.quiet)
        self._coordinator = CoordinatorProcess(
            *(self._host_processes, recorder, display.say),
            alone=invitation is None,
            patience=request.patience,
        )
        self._servers: dict[str, Process] = {}
        self._workers: dict[str, Process] = {}
        self._remote = RemoteWorkers(request.hosts)
        """The workers on other hosts, by name."""
        self._remote_servers = {
            f"server-{number}": RemoteProcess(f"server-{number}", host)
            for number, host in enumerate(request.server_hosts)
            if host != request.host
        }
        """The servers on other hosts, whose agents restart them; a reported failure is final."""
        self._restarts = 0
        self._returns = WorkerReturns(request.workers)
        self._faults = FaultInjection.on_first_host(request, self._find, recorder, display.say)
        self._returning: set[str] = set()
        """Workers that were restarted and have not joined yet."""
        self._missed: dict[str, Exit] = {}
        """Workers that were killed, until the coordinator reports whether the run had begun."""

    @property
    def _processes(self) -> list[Process]:
        first = (self._coordinator.process, self._host_processes.fork_server)
        return [*filter(None, first), *self._servers.values(), *self._workers.values()]

    @property
    def _watched(self) -> list[Process | RemoteProcess]:
        return [*self._processes, *self._remote.values(), *self._remote_servers.values()]

    def _find(self, name: str) -> Process | None:
        """The current process of a name; None if there is none."""
        return next((process for process in self._processes if process.name == name), None)

    def execute(self) -> None:
        """Start the processes, watch them and end them."""
        collective = self._needs.collectives
        store, port = serve_store(self._place[0]) if collective else (None, 0)
        memory = reserve() if self._needs.shared_memory else None
        journals = self._reserve_journals()
        assignment = self._assign(port, memory, journals)
        if collective and self._invitation is not None:
            self._display.say(
                f"{self._request.strategy} exchanges updates through torch.distributed, which "
                "neither authenticates nor encrypts: trust the network between the hosts"
            )
        on_cpus = set(assignment.devices) == {"cpu"}
        for warning in warnings_before(self._request, on_cpus=on_cpus):
            self._display.say(warning)
        try:
            with Line(assignment.coordinator, "agent-0") as line:
                parting = Disband(failed=False, words="")
                try:
                    self._start(line)
                    with stored_before_leaving(
                        *(self._request, self._display.say, self._returns),
                        lambda: self._coordinator.beat(line),
                    ):
                        self._watch(line)
                except BaseException as error:
                    again = goes_back(self._request, error)
                    parting = Disband(failed=True, words=_first_line(error), again=again)
                    raise
                finally:
                    # A confirmation that arrives while the run ends must not start a worker again.
                    self._missed.clear()
                    # Before the processes are ended: links are restored, so that other hosts hear
                    # of the end, and stopped processes continue.
                    self._faults.end()
                    # Before the coordinator parts: it receives the last traces of the workers.
                    end(self._workers.values(), _GRACE)
                    # When the workers have ended: they may print until then.
                    self._output.end(failed=parting.failed)
                    self._coordinator.part(line, parting, lambda: self._follow(line, _POLL))
        finally:
            self._host_processes.end(self._processes, _GRACE)
            # After its process has ended: a successor that was started just now still reads the
            # journal.
            self._coordinator.close()
            for descriptor in (*journals, *(() if memory is None else (memory,))):
                os.close(descriptor)
            del store

    def _reserve_journals(self) -> tuple[int, ...]:
        """Shared memory for the servers' journals; the agent owns it, so it outlives a server."""
        count = self._needs.server_processes if can_share() else 0
        return tuple(reserve() for _ in range(count))

    def _assign(self, port: int, memory: int | None, journals: tuple[int, ...]) -> Assignment:
        request, servers = self._request, range(self._needs.servers)
        assignment = Assignment(
            origin=request.origin,
            overrides=request.overrides,
            strategy=str(request.strategy),
            workers=request.workers,
            host=request.host,
            folder=str(request.folder.resolve()),
            storage=str(request.folder.resolve()),
            coordinator=f"ipc://{self._private}/coordinator",
            private=str(self._private),
            store_address=self._place[0],
            store_port=port,
            servers=tuple(f"ipc://{self._private}/server-{number}" for number in servers),
            leasing=leasing_of(request),
            agent=os.getpid(),
            attempt=str(os.getpid()),
            devices=devices(request.here),
            memory=memory,
            journals=journals,
            coordinator_journal=self._coordinator.journal,
            patience=request.patience,
            recovers=self._recovers,
            peers=self._needs.peer_servers,
            takes_back=self._takes_back,
            elastic=self._elastic,
            row=self._row,
            slow=request.slow,
            resume=None if request.resume is None else str(request.resume.resolve()),
            checkpoint_memory=request.memory,
            generation=request.generation,
            faults=request.faults.text if request.faults else "",
        )
        if request.hosts is not None and self._invitation is not None:
            job = override(request.job, request.overrides)
            assignment = msgspec.structs.replace(
                assignment,
                hosts=request.hosts.counts,
                server_hosts=request.server_hosts,
                preloads=request.preloads,
                restarts_servers=job.durability != "none",
                address=self._place[0],
                port=self._place[1],
                key=str(self._invitation.key),
                facts=facts_of_host(Path(request.origin.script)) | facts_of_job(job),
            )
        assignment.write(self._private / "assignment.json")
        return assignment

    def _start(self, line: Line) -> None:
        self._coordinator.start()
        unfit = self._host_processes.await_fork_server(lambda: self._follow_closely(line))
        if unfit:
            self._recorder.event("no fork server", {"words": unfit})
        for number in filter(self._request.has_server, range(self._needs.server_processes)):
            name = f"server-{number}"
            self._servers[name] = self._host_processes.fork(name, _SERVER, str(number))
        for rank in range(self._request.here):
            name = f"worker-{rank}"
            self._workers[name] = self._host_processes.fork(name, _WORKER, str(rank))
            self._output.follow(rank, name)

    def _follow_closely(self, line: Line) -> None:
        self._follow(line, 0.0)
        self._coordinator.look(line)
        self._look_after(line)

    def _watch(self, line: Line) -> None:
        """Watch the run until all workers have finished or a process failed."""
        while True:
            self._follow(line, _POLL)
            self._coordinator.look(line)
            self._output.look()
            self._faults.look()
            if self._invitation is not None:
                self._invitation.beat()
            self._look_after(line)
            workers: dict[str, Process | RemoteProcess] = {**self._workers, **self._remote}
            # A restarted worker that has not joined yet does not delay the end of the run.
            here = [worker for name, worker in workers.items() if name not in self._returning]
            if here and all(worker.poll() is not None for worker in here):
                return
            gone = self._coordinator.has_ended()
            if gone and not self._coordinator.restart(gone, line, self._missed.values()):
                raise RunFailed(
                    self._host_processes.words(gone, " before the workers had finished")
                )

    def _look_after(self, line: Line) -> None:
        """Raise RunFailed if a process failed and the run cannot go on without it."""
        self._host_processes.watch_fork_server(self._display.say)
        for process in self._watched:
            exit_ = process.poll()
            if exit_ is not None and exit_.failed and not self._survives(exit_, line):
                raise self._failure(line)

    def _survives(self, exit_: Exit, line: Line) -> bool:
        """Whether the run goes on, without a process that was killed or with its successor.

        An exception would be raised again by a successor, so it ends the run. Where workers hold
        different parts of a model the others cannot continue, so any failure ends the run.
        """
        if exit_.name == COORDINATOR:
            return self._coordinator.restart(exit_, line, self._missed.values())
        if exit_.name == FORK_SERVER and self._host_processes.replace_fork_server(exit_):
            self._recorder.event("restart", {"member": exit_.name, "words": str(exit_)})
            self._display.say(f"{exit_}; a new fork server is started")
            return True
        if not exit_.killed or not (self._needs.leases or self._elastic):
            return False
        kept = override(self._request.job, self._request.overrides).durability != "none"
        if exit_.name in self._servers and kept and self._restarts < _RESTARTS:
            self._restart(exit_)
            return True
        if exit_.name in {*self._workers, *self._remote}:
            self._recorder.event("lost", {"member": exit_.name, "words": str(exit_)})
            # The worker is started again only when the coordinator has confirmed it: whether the
            # run had begun decides what follows, and only the coordinator knows
            # (`docs/decisions/0044-incarnations.md`).
            line.send(Lost(exit_.name, str(exit_), exit_.incarnation))
            self._remote.lose(exit_)
            if exit_.name in self._workers:
                self._workers.pop(exit_.name).close()
            # Kept until it is confirmed, so that it can be reported to a successor of the
            # coordinator, too.
            self._missed[exit_.name] = exit_
            return True
        return False

    def _go_on_without(self, exit_: Exit, *, begun: bool) -> None:
        """Restart a lost worker, which the coordinator has noted, or continue without it.

        Raises:
            RunFailed: the worker can neither be restarted nor be left out.
        """
        here = exit_.host == self._request.host
        again = self._bring_back(exit_, begun=begun) if here else self._expect(exit_, begun=begun)
        if begun and self._count_workers() > 0:
            more = ", and it is restarted" if again else ""
            self._display.say(f"{exit_}; the other workers continue{more}")
        elif not begun and again:
            self._display.say(f"{exit_} before all workers had joined; it is restarted")
        elif not begun and not here:
            # Its host may join again, and the agent there restarts workers that were killed.
            self._remote[exit_.name] = RemoteProcess(exit_.name, exit_.host)
            self._display.say(
                f"{exit_} before all workers had joined; waiting for {exit_.host} to restart it"
            )
        else:
            self._recorder.event("failure", {"words": str(exit_)})
            raise (ProcessKilled if self._row > 1 else RunFailed)(self._host_processes.words(exit_))

    def _expect(self, exit_: Exit, *, begun: bool) -> bool:
        """Expect the successor of a worker on another host; whether its agent has started one."""
        if not self._remote.expect(exit_.name, allowed=not begun or self._count_workers() > 0):
            return False
        if begun:
            self._returning.add(exit_.name)
        return True

    def _bring_back(self, exit_: Exit, *, begun: bool) -> bool:
        """Restart a worker that was killed, if the strategy allows; whether it was restarted."""
        # A loop of the user's own may hold state that no other worker hands over.
        again = self._takes_back or (self._elastic and self._request.origin.loop is None)
        if (begun and not again) or not self._returns.are_allowed:
            return False
        if exit_.name in self._faults.stays_away or (begun and self._count_workers() == 0):
            return False
        rank = exit_.name.removeprefix("worker-")
        log = f"{exit_.name}.{self._returns.add()}"
        self._workers[exit_.name] = self._host_processes.fork(exit_.name, _WORKER, rank, log)
        self._output.follow(int(rank), log)
        if begun:
            self._returning.add(exit_.name)
        return True

    def _count_workers(self) -> int:
        """The number of workers; without servers, of replicas that have the state of the run."""
        names = {*self._workers, *self._remote}
        if not (self._elastic or self._needs.peer_servers):
            return len(names)
        have = names - self._returning
        return elasticity.count_replicas(have, self._row)

    def _restart(self, exit_: Exit) -> None:
        self._restarts += 1
        self._display.say(f"{exit_}; it is restarted")
        self._recorder.event("restart", {"member": exit_.name, "words": str(exit_)})
        self._servers[exit_.name].close()
        number = exit_.name.removeprefix("server-")
        log = f"{exit_.name}.{self._restarts}"
        self._servers[exit_.name] = self._host_processes.fork(exit_.name, _SERVER, number, log)

    def _follow(self, line: Line, timeout: float) -> None:
        for message in line.receive(timeout):
            self._coordinator.hear()
            if isinstance(message, Status):
                self._faults.follow(message)
                self._returns.follow(message)
                self._welcome_back(message.returned)
                self._invite(message)
                self._display.show(message)
            elif isinstance(message, Ended) and message.name in self._remote:
                self._remote[message.name].set_ended(message)
            elif isinstance(message, Ended) and message.name in self._remote_servers:
                self._remote_servers[message.name].set_ended(message)
            elif isinstance(message, Eject):
                eject(message, {**self._workers, **self._servers})
            # Taken out with the first confirmation: a repeated one would start a second successor.
            elif isinstance(message, Missed) and message.name in self._missed:
                self._go_on_without(self._missed.pop(message.name), begun=message.begun)
            elif isinstance(message, HostReturned) and self._remote.take_back(message.host):
                self._display.say(f"{message.host} has rejoined")
            elif isinstance(message, Warn):
                self._display.say(message.words)

    def _welcome_back(self, names: tuple[str, ...]) -> None:
        for name in sorted(self._returning & {*names}):
            self._returning.discard(name)
            self._display.say(f"{name.replace('-', ' ')} has rejoined")

    def _invite(self, status: Status) -> None:
        """Show the commands for the other hosts, once the coordinator's address is known."""
        asked = self._invitation
        if asked and (words := asked.open(status.outside, begun=status.started)):
            self._display.say(words)

    def _failure(self, line: Line) -> RunFailed:
        """The failure that caused the others, with its traceback last.

        A worker that failed because it lost a peer may be seen before that peer: wait for the
        cause. If it is not seen in time, its host is lost, which takes longer to be noticed.
        """
        deadline = time.monotonic() + _CAUSE_WITHIN
        while True:
            exits = [process.poll() for process in self._watched]
            cause = first_failure(exit_ for exit_ in exits if exit_ is not None)
            certain = cause is not None and not (cause.report and cause.report.consequence)
            if cause and (certain or time.monotonic() > deadline):
                break
            self._follow(line, _POLL)
        self._recorder.event("failure", {"words": str(cause)})
        return self._host_processes.failure(cause, "" if self._recovers else _REMEDY)


def _environment(request: Request) -> dict[str, str]:
    return environment(request.cluster.hosts[0].cores, request.here)


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
