"""Fork server: a process with torch preloaded, which forks the workers and servers of a run.

Loading torch and our modules takes a process about two seconds of CPU time, and what some
strategies load of torch beside that, as long again. The fork server spends them once. It executes
no user code, has no threads, and opens no socket except the one to its agent. So a forked process
is equivalent to a newly started one, and is ready in milliseconds.

The fork server forks twice and the child in between exits at once. The agent adopts the grandchild:
it is a child subreaper while a fork is under way. So the agent is the parent of all processes of a
run: it collects their exit codes, and they are killed with it. The fork server is the parent of no
process, and only processes that are still to be forked depend on it.

    agent ──Order──> fork server ──fork──> (child) ──fork──> forked process, a worker or server
      ^                                  exits at once      |
      └────────────────────Forked(pid)──────────────────────┘

A forked process reports its process id once it leads its session and has its parent, its log files
and its environment; then it closes its end of the link. So when the fork server has ended and the
link is read to its end, every forked process is known. A process that is killed before it reports
itself is reported by the fork server, which reads a pipe that the process holds open until then.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from manyhands.live.processes.forked_process import (
    Forked,
    NotForked,
    Order,
    Preload,
    become,
    fork,
)
from manyhands.live.processes.parent_death import adopting, can_adopt, die_with
from manyhands.live.processes.process_title import ROOM, show
from manyhands.live.processes.supervision import FINISHED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from manyhands.live.processes.supervision import Handle, Start

SWITCH = "MANYHANDS_FORK"
"""Environment variable: with the value 0, every process is started in a new interpreter."""
_ASK_EVERY = 2.0
"""Seconds between an answer of the fork server and the next question."""
_MESSAGE = 1 << 17
_PRELOADED = (
    "manyhands.live.member.shared_parameters",
    "manyhands.live.worker.protocol_loop",
    "manyhands.live.worker.peer_server",
    "manyhands.live.server.process",
    "manyhands.live.server.shard_server",
    "manyhands.live.worker.trainer",
    "manyhands.live.worker.process",
    "manyhands.transport.caller",
    "manyhands.placements.worker.whole_model",
)
"""The modules that workers and servers execute."""


class _Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The fork server has loaded all modules."""

    unfit: str
    """Why it must not fork; empty if it may."""


class _Ask(msgspec.Struct, frozen=True, tag="ask"):
    """A question to the fork server, which shows whether it gets on."""


class _Here(msgspec.Struct, frozen=True, tag="here"):
    """The answer."""


_Report = _Ready | _Here | Forked | NotForked


class ForkFailed(RuntimeError):  # noqa: N818 - it names what happened
    """The fork server could not start a process."""


class NoReport(ForkFailed):
    """The fork server did not answer in time: it is stopped, or hangs."""


def environment(cores: int, workers: int) -> dict[str, str]:
    """Variables that the processes of a run have in addition to the agent's environment."""
    threads = max(1, cores // max(1, workers))
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        # The order of a set of strings must be the same in all processes, on every host.
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
        "PYTHONUNBUFFERED": "1",
    }


class ForkServer:
    """The agent's handle of a fork server process; sends it orders to fork.

    Args:
        environment: variables in addition to the agent's environment.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._surroundings = _surroundings(environment)
        self._environment = {**os.environ, **environment}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the fork server
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [
                    *(sys.executable, "-m", __name__),
                    *(str(theirs.fileno()), str(os.getpid()), "." * ROOM),
                ],
                env=self._environment,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.pid = self._process.pid
        self.unfit = ""
        """Why it must not be used; known once it is ready."""
        self._is_ready = False
        self._has_answered = False
        self._asked: float | None = None
        """When it was asked; None while it owes no answer."""
        self._answered = self._since = time.monotonic()
        self._orders = 0
        self._forked: list[_ForkedHandle] = []

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Whether a fork server that was started now would be equivalent."""
        return self.poll() is None and self._surroundings == _surroundings(environment)

    def is_ready(self, timeout: float) -> bool:
        """Whether it has loaded all modules, within `timeout` seconds."""
        if not self._is_ready and select.select([self._link], [], [], timeout)[0]:
            report = self._receive()
            if isinstance(report, _Ready):
                self._is_ready, self.unfit = True, report.unfit
        return self._is_ready

    def silence(self) -> tuple[float, bool]:
        """Seconds for which it has owed an answer, and whether it has loaded all modules.

        It is asked again when it has answered. Not called while a fork is under way.
        """
        while select.select([self._link], [], [], 0.0)[0]:
            report = self._receive()
            if report is None:
                return 0.0, True
            if isinstance(report, _Ready):
                self._is_ready, self.unfit = True, report.unfit
            if isinstance(report, _Here):
                self._has_answered, self._asked = True, None
                self._answered = time.monotonic()
        now = time.monotonic()
        if self._asked is not None:
            return now - self._asked, self._has_answered
        # Not asked while it loads: it would answer only afterwards, and seem to hang on a busy
        # machine.
        if self._is_ready and now - self._answered >= _ASK_EVERY:
            self._asked = now
            with contextlib.suppress(OSError):  # if it has ended, that is noticed
                self._link.send(msgspec.json.encode(_Ask()))
        return (0.0, True) if self._is_ready else (now - self._since, False)

    def preload(self, modules: Sequence[str]) -> None:
        """Have it load modules that forked processes will import, before it forks one."""
        if modules:
            with contextlib.suppress(OSError):  # if it has ended, `fork` reports that
                self._link.send(msgspec.json.encode(Preload(tuple(modules))))

    def fork(self, start: Start, within: float = 60.0) -> Handle:
        """Fork a process that executes `start`; it may have ended already.

        Args:
            start: what it executes.
            within: seconds in which it must report itself.

        Raises:
            NoReport: it did not.
            ForkFailed: the fork failed, or the fork server has ended.
        """
        now = {**os.environ, **start.settings}
        then = self._environment
        self._orders += 1
        order = Order(
            self._orders,
            start,
            str(Path.cwd()),
            {name: value for name, value in now.items() if then.get(name) != value},
            [name for name in then if name not in now],
        )
        # From before the order until the report: the agent becomes the parent at the moment when
        # the process in between exits.
        with adopting():
            with contextlib.suppress(OSError):  # if it has ended, the link reports that
                self._link.send(msgspec.json.encode(order))
            report = self._await_report(within)
        if report is None:
            raise ForkFailed("the fork server has ended")
        if report.pid:
            self._forked.append(_ForkedHandle(report.pid))
        if isinstance(report, NotForked) and report.words:
            raise ForkFailed(report.words)
        return self._forked[-1]

    def _await_report(self, within: float) -> Forked | NotForked | None:
        """The report on the latest order; None if the fork server has ended."""
        deadline = time.monotonic() + within
        while True:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._link], [], [], left)[0]:
                raise NoReport(f"the fork server gave no answer within {within:.0f} s")
            report = self._receive()
            if report is None:
                return None
            if isinstance(report, _Here):
                self._has_answered, self._asked, self._answered = True, None, time.monotonic()
            # A report that came too late belongs to an order that was given up, and names another
            # process.
            elif isinstance(report, Forked | NotForked) and report.order == self._orders:
                return report

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float) -> None:
        """Wait for its end, at most `timeout` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)

    def close(self) -> None:
        """End it and all processes that it forked."""
        # First, so that no process is forked after the others were ended.
        self.retire()
        for forked in self._forked:
            forked.end()

    def retire(self) -> None:
        """End it and forked processes without a handle; all others continue."""
        if self._link.fileno() < 0:
            return
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        # First: a process that is forked in this moment reports itself over the link, which is
        # complete only when the fork server has ended.
        self._process.wait()
        while select.select([self._link], [], [], 5.0)[0]:
            report = self._receive()
            if report is None:
                break
            known = {forked.pid for forked in self._forked}
            if not isinstance(report, Forked | NotForked):
                continue
            if report.pid and report.pid not in known:
                # The agent has no handle of it: it would go on for as long as the agent.
                _ForkedHandle(report.pid).end()
        self._link.close()
        self._log.close()

    def output(self) -> str:
        """Its standard output and standard error."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def _receive(self) -> _Report | None:
        """Its next report; None if the link is closed."""
        try:
            data = self._link.recv(_MESSAGE)
        except OSError:
            return None
        return msgspec.json.decode(data, type=_Report) if data else None


class _ForkedHandle:
    """The handle of a forked process, which is a child of the agent."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                # Other code in this process waited for all children. As subprocess does, it counts
                # as one that succeeded.
                self._code = FINISHED
            else:
                self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, timeout: float) -> None:
        """Wait for its end, at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)

    def close(self) -> None:
        """Nothing to release: the process itself opened its files."""

    def end(self) -> None:
        """Kill it if it still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.wait(5.0)


def _surroundings(environment: Mapping[str, str]) -> tuple[object, ...]:
    """Everything that a process inherits and that imports may read."""
    status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    return (
        {**os.environ, **environment},
        Path.cwd(),
        os.sched_getaffinity(0),
        os.getpriority(os.PRIO_PROCESS, 0),
        Path("/proc/self/limits").read_text(encoding="utf-8"),
        next((line for line in status.splitlines() if line.startswith("Umask:")), ""),
    )


def can_fork() -> bool:
    """Whether a fork server can be used on this system and is not disabled."""
    return hasattr(os, "fork") and os.environ.get(SWITCH) != "0" and can_adopt()


_early: ForkServer | None = None


@contextlib.contextmanager
def ahead(environment: Mapping[str, str]) -> Iterator[None]:
    """Start a fork server while this process still loads torch; the first run takes it."""
    global _early  # noqa: PLW0603 - kept for a run that a script may or may not start
    _early = ForkServer(environment) if can_fork() else None
    try:
        yield
    finally:
        if _early is not None:
            _early.close()
            _early = None


@contextlib.contextmanager
def fork_server(
    environment: Mapping[str, str], preloads: Sequence[str] = ()
) -> Iterator[ForkServer | None]:
    """The fork server of one run, ended with the run; None where forking is not possible.

    Args:
        environment: variables in addition to the agent's environment.
        preloads: modules that it loads for this run beside the usual ones.
    """
    global _early
    # Taken away first: a second run in this process, or the end of `ahead`, must not find it.
    taken, _early = _early, None
    if taken is not None and not taken.suits(environment):
        taken.close()
        taken = None
    if taken is None and can_fork():
        taken = ForkServer(environment)
    if taken is not None:
        taken.preload(preloads)
    try:
        yield taken
    finally:
        if taken is not None:
            taken.close()


@contextlib.contextmanager
def renewed(
    loaded: ForkServer | None, environment: Mapping[str, str], preloads: Sequence[str] = ()
) -> Iterator[ForkServer | None]:
    """The fork server of an earlier attempt of the run; another one if it has ended.

    Args:
        loaded: that of the earlier attempt, which is not ended here; None for none.
        environment: variables in addition to the agent's environment.
        preloads: modules that another one loads beside the usual ones.
    """
    if loaded is None or loaded.poll() is None:
        yield loaded
        return
    with fork_server(environment, preloads) as another:
        yield another


def main(descriptor: int, agent: int) -> None:
    """Load all modules and execute the agent's orders; in a forked process, execute its module."""
    die_with(agent, signal.SIGKILL)
    show([*sys.orig_argv[:-1]])
    folder = str(Path.cwd())
    order = None
    with socket.socket(fileno=descriptor) as link:
        # A subprocess that a worker starts must not hold the link open.
        os.set_inheritable(descriptor, False)
        unfit = _load()
        link.send(msgspec.json.encode(_Ready(unfit)))
        while data := link.recv(_MESSAGE):
            asked: Order | Preload | _Ask = msgspec.json.decode(data, type=Order | Preload | _Ask)
            if isinstance(asked, _Ask):
                link.send(msgspec.json.encode(_Here()))
            elif isinstance(asked, Preload):
                _import(asked.modules)
            elif fork(link, agent, asked):
                order = asked
                break
    if order is not None:
        become(order.start, folder, order.folder)


def _load() -> str:
    """Import the modules; return why this process must not fork, or an empty string."""
    before = _threads()
    importlib.import_module("numpy")
    # NumPy itself ends the threads of its linear algebra before each fork.
    own = _threads() - before
    _import(_PRELOADED)
    import torch  # noqa: PLC0415 - here, and nowhere else in this file

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch has no annotation
        return "CUDA is initialised in it"
    more = max(_threads() - own, threading.active_count()) - 1
    return f"{more} more threads run in it" if more else ""


def _import(modules: Sequence[str]) -> None:
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.enable()
    # Loaded modules are never garbage: skipping them in collections avoids copying their pages.
    gc.collect()
    gc.freeze()


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
