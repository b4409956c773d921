"""The agent: the foreground process that starts a run on its host and ends it.

It starts a coordinator, has a nursery fork the servers and workers, shows one progress line, and
sees to it that nothing is left when the run is over, whichever way it ends. If the agent itself is
killed, the kernel ends its workers and the coordinator says so.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from manyhands.failure import RunFailed
from manyhands.live.assignment import Assignment, Leasing, Origin, Overrides, override
from manyhands.live.direct import Direct
from manyhands.live.display import Display
from manyhands.live.lifeline import signals_raise
from manyhands.live.loading import prepare
from manyhands.live.nursery import NotBorn, Nursery, environment, nursery
from manyhands.live.pulse import append_to
from manyhands.live.supervise import Exit, Handle, Process, Start, end, first_failure
from manyhands.protocols import StrategyProtocol
from manyhands.trace import Recorder, live_header, trace_file
from manyhands.transport.collectives import LOOPBACK, serve_store
from manyhands.transport.control import Line
from manyhands.transport.memory import reserve
from manyhands.wire import Goodbye, Status, Warn
from manyhands.wire.leasing import Lost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from manyhands.cluster import Cluster
    from manyhands.job import Job
    from manyhands.pacing import Pace
    from manyhands.strategies import Strategy

_POLL = 0.1
_GRACE = 1.0
_CAUSE_WITHIN = 3.0
"""Seconds in which the cause of a lost peer must show itself."""
_COORDINATOR = "manyhands.live.coordinator"
_SERVER = "manyhands.live.server"
_WORKER = "manyhands.live.worker"
_NURSERY = "nursery"
_RESTARTS = 1000
"""How often servers may be started again in one run."""


@dataclass(frozen=True)
class Setting:
    """A setting of the run and where it came from."""

    name: str
    value: str
    source: str


@dataclass(frozen=True)
class Request:
    """A run as its user asked for it."""

    job: Job
    origin: Origin
    overrides: Overrides
    strategy: Strategy
    workers: int
    cluster: Cluster
    folder: Path
    settings: tuple[Setting, ...]
    slow: tuple[Pace, ...] = ()


def launch(request: Request) -> None:
    """Run it to its end.

    Raises:
        RunFailed: a process of the run failed; the message ends with its traceback.
        KeyboardInterrupt: the user interrupted; everything is ended first.
    """
    if isinstance(request.strategy, StrategyProtocol):
        hosts = [host.name for host in request.cluster.hosts]
        request.strategy.check_places(hosts, devices(request.workers))
        if request.job.clip is not None:
            request.strategy.check_clip()
    with nursery(_environment(request)) as loaded:
        prepare(request.job)
        _launch(request, loaded)


def _launch(request: Request, loaded: Nursery | None) -> None:
    (request.folder / "trace").mkdir(parents=True, exist_ok=True)
    (request.folder / "logs").mkdir(exist_ok=True)
    head = live_header("agent", 0, clock=time.monotonic, wall=time.time)
    recorder = Recorder(head, append_to(trace_file(request.folder, head)), time.monotonic)
    for setting in request.settings:
        recorder.setting(setting.name, setting.value, setting.source)
    recorder.flush()
    job = override(request.job, request.overrides)
    display = Display(job.budget, job.seconds, time.monotonic)
    try:
        with _private_folder() as private, signals_raise():
            _Run(request, private, recorder, display, loaded).to_its_end()
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
        recorder.flush()
        display.end()


class _Run:
    """The processes of one run, from their start to their end."""

    def __init__(
        self,
        request: Request,
        private: Path,
        recorder: Recorder,
        display: Display,
        loaded: Nursery | None,
    ) -> None:
        self._request = request
        self._private = private
        self._recorder = recorder
        self._display = display
        self._nursery = loaded
        self._nursery_process: Process | None = None
        self._coordinator: Process | None = None
        self._servers: dict[str, Process] = {}
        self._workers: dict[str, Process] = {}
        self._restarts = 0

    @property
    def _processes(self) -> list[Process]:
        first = (self._coordinator, self._nursery_process)
        return [*filter(None, first), *self._servers.values(), *self._workers.values()]

    def to_its_end(self) -> None:
        """Start, watch, end."""
        store, port = serve_store(LOOPBACK)
        strategy = self._request.strategy
        shares = isinstance(strategy, StrategyProtocol) and strategy.shares
        memory = reserve() if shares else None
        assignment = self._assign(port, memory)
        try:
            with Line(assignment.coordinator, "agent-0") as line:
                self._start(line)
                try:
                    self._watch(line)
                finally:
                    end(self._workers.values(), _GRACE)
                    line.send(Goodbye(0, 0))
                    self._hear_out(line)
        finally:
            end(self._processes, _GRACE)
            for process in self._processes:
                process.close()
            if memory is not None:
                os.close(memory)
            del store

    def _assign(self, port: int, memory: int | None) -> Assignment:
        request = self._request
        strategy = request.strategy
        servers = 0
        if isinstance(strategy, StrategyProtocol):
            servers = strategy.count_servers(request.workers)
        assignment = Assignment(
            origin=request.origin,
            overrides=request.overrides,
            strategy=str(strategy),
            workers=request.workers,
            host=request.cluster.hosts[0].name,
            folder=str(request.folder.resolve()),
            coordinator=f"ipc://{self._private}/coordinator",
            private=str(self._private),
            store_address=LOOPBACK,
            store_port=port,
            servers=tuple(f"ipc://{self._private}/server-{number}" for number in range(servers)),
            leasing=self._leasing(),
            agent=os.getpid(),
            devices=devices(request.workers),
            memory=memory,
            slow=request.slow,
        )
        assignment.write(self._private / "assignment.json")
        return assignment

    def _leasing(self) -> Leasing | None:
        job, strategy = override(self._request.job, self._request.overrides), self._request.strategy
        if not isinstance(strategy, StrategyProtocol):
            return None
        return Leasing(
            samples=len(job.data),
            global_batch=job.batch_sizes,
            budget=job.budget,
            seconds=job.seconds,
            evaluates=job.validation is not None,
            lockstep=strategy.lockstep,
            by_rank=strategy.by_rank(self._request.workers),
        )

    def _start(self, line: Line) -> None:
        # It needs no torch, so it is sooner there without the nursery.
        self._coordinator = self._process("coordinator", _COORDINATOR, Direct)
        self._await_nursery(line)
        strategy = self._request.strategy
        if isinstance(strategy, StrategyProtocol) and not strategy.peers:
            for number in range(strategy.count_servers(self._request.workers)):
                name = f"server-{number}"
                self._servers[name] = self._spawn(name, _SERVER, str(number))
        for rank in range(self._request.workers):
            name = f"worker-{rank}"
            self._workers[name] = self._spawn(name, _WORKER, str(rank))

    def _await_nursery(self, line: Line) -> None:
        """Watch until the nursery has loaded everything; do without it if it must not fork."""
        if self._nursery is None:
            return
        error = self._request.folder / "logs" / f"{_NURSERY}.error.json"
        self._nursery_process = Process(_NURSERY, self._nursery, error)
        while not self._nursery.is_ready(_POLL):
            self._follow(line, 0.0)
            self._look_after(line)
        if self._nursery.unfit:
            self._recorder.event("no nursery", {"words": self._nursery.unfit})
            self._nursery.close()
            self._nursery = self._nursery_process = None

    def _spawn(self, name: str, module: str, number: str, log: str = "") -> Process:
        """Start a process that needs torch."""
        if self._nursery is None:
            return self._process(name, module, Direct, number, log=log)
        try:
            return self._process(name, module, self._nursery.fork, number, log=log)
        except NotBorn as error:
            gone = self._nursery_process.wait(1.0) if self._nursery_process else None
            words = f"{name.replace('-', ' ')} could not be started: {gone or error}"
            raise RunFailed(words) from error

    def _process(
        self,
        name: str,
        module: str,
        how: Callable[[Start], Handle],
        *arguments: str,
        log: str = "",
    ) -> Process:
        assignment = str(self._private / "assignment.json")
        stem = self._request.folder.resolve() / "logs" / (log or name)
        start = Start(module, (assignment, *arguments), str(stem), _environment(self._request))
        return Process(name, how(start), Path(start.error))

    def _watch(self, line: Line) -> None:
        """Follow the run until all workers have finished or something failed."""
        while True:
            self._follow(line, _POLL)
            self._look_after(line)
            if all(worker.poll() is not None for worker in self._workers.values()):
                return
            gone = self._coordinator.poll() if self._coordinator else None
            if gone is not None:
                raise RunFailed(f"{gone} before the workers had finished")

    def _look_after(self, line: Line) -> None:
        """See whether a process failed, and whether the run survives it."""
        for process in self._processes:
            exit_ = process.poll()
            if exit_ is not None and exit_.failed and not self._survives(exit_, line):
                raise self._failure(line)

    def _survives(self, exit_: Exit, line: Line) -> bool:
        """Whether the run goes on without a process that was killed, or with its successor.

        An exception in somebody's code would come again, so it ends the run. Under a lockstep
        strategy nobody can go on alone.
        """
        killed = exit_.code < 0 and exit_.report is None
        if not killed or not isinstance(self._request.strategy, StrategyProtocol):
            return False
        if exit_.name in self._servers and self._restarts < _RESTARTS:
            self._restart(exit_)
            return True
        if exit_.name in self._workers and len(self._workers) > 1:
            self._display.say(f"{exit_}; the others carry on")
            self._recorder.event("lost", {"member": exit_.name, "words": str(exit_)})
            line.send(Lost(exit_.name, str(exit_)))
            self._workers.pop(exit_.name).close()
            return True
        return False

    def _restart(self, exit_: Exit) -> None:
        self._restarts += 1
        self._display.say(f"{exit_}; it is started again")
        self._recorder.event("restart", {"member": exit_.name, "words": str(exit_)})
        self._servers[exit_.name].close()
        number = exit_.name.removeprefix("server-")
        log = f"{exit_.name}.{self._restarts}"
        self._servers[exit_.name] = self._spawn(exit_.name, _SERVER, number, log)

    def _follow(self, line: Line, timeout: float) -> None:
        for message in line.receive(timeout):
            if isinstance(message, Status):
                self._display.show(message)
            elif isinstance(message, Warn):
                self._display.say(message.words)

    def _failure(self, line: Line) -> RunFailed:
        """The failure that the others follow from, in words, its traceback last.

        One who lost a peer may be seen before the peer that was lost: wait for the cause.
        """
        deadline = time.monotonic() + _CAUSE_WITHIN
        while True:
            exits = [process.poll() for process in self._processes]
            cause = first_failure(exit_ for exit_ in exits if exit_ is not None)
            certain = cause is not None and not (cause.report and cause.report.consequence)
            if cause and (certain or time.monotonic() > deadline):
                break
            self._follow(line, _POLL)
        if self._nursery is not None and cause.name == _NURSERY:
            (self._request.folder / "logs" / f"{_NURSERY}.err").write_text(self._nursery.words())
        self._recorder.event("failure", {"words": str(cause)})
        return RunFailed(_words(cause, self._request.folder))

    def _hear_out(self, line: Line) -> None:
        """Let the coordinator take in the last words of all, and its last status."""
        deadline = time.monotonic() + 5.0
        while self._coordinator is not None and self._coordinator.poll() is None:
            self._follow(line, _POLL)
            if time.monotonic() > deadline:
                return


def _environment(request: Request) -> dict[str, str]:
    return environment(request.cluster.hosts[0].cores, request.workers)


def _words(cause: Exit, folder: Path) -> str:
    log = folder / "logs" / f"{cause.name}.err"
    words = f"{cause}. Its log: {log}"
    last = cause.report.traceback if cause.report else _tail(log)
    return f"{words}\n\n{last.rstrip()}" if last.strip() else words


def _tail(log: Path, lines: int = 20) -> str:
    """The end of a log: where a process leaves no report, its last words may be there."""
    try:
        return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def devices(workers: int) -> tuple[str, ...]:
    """A device for each worker of this host: the GPUs in turn, else its cores."""
    if torch.cuda.is_available():  # not exercised on machines without a GPU
        count = torch.cuda.device_count()
        return tuple(f"cuda:{rank % count}" for rank in range(workers))
    return ("cpu",) * workers


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder that only this user may enter, for sockets and the assignment.

    Its name is short, because the path of a socket may have 107 characters at most.
    """
    folder = Path(tempfile.mkdtemp(prefix="manyhands-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
