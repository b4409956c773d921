"""The nursery: a process that has loaded torch, and forks the workers and servers of a run.

Loading torch, and what optimizers load of it later, costs a process four seconds of computing. The
nursery pays them once. It runs nothing, opens no socket but the one to its agent and has no thread,
so what it forks is as good as a process that was started afresh, and is there in milliseconds.

Who is whose parent? The nursery forks twice and its child leaves at once; the orphan is adopted by
the agent, which asks the kernel for that while a birth is under way. So the agent is the parent of
all processes of a run: it collects their exit codes, and they are killed with it. The nursery is
nobody's parent, and nobody depends on its life but those still to be born.

    agent ──Start──> nursery ──fork──> (child) ──fork──> newborn, soon a worker
      ^                                  leaves at once     |
      └─────────────────────Born(pid)───────────────────────┘

A newborn reports itself once it leads its session, has its parent, its log files and its
environment; then it closes its end. So when the nursery is gone and nothing more can be read, every
process that was born is known. One that is killed before it reports itself is reported by the
nursery, which reads a pipe that the newborn holds open until then.
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

from manyhands.live.processes.forked_process import Born, Order, Unborn, become, fork
from manyhands.live.processes.parent_death import adopting, can_adopt, die_with
from manyhands.live.processes.process_title import ROOM, show

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from manyhands.live.processes.supervision import Handle, Start

SWITCH = "MANYHANDS_FORK"
"""Set to 0, every process is started afresh."""
_BIRTH_WITHIN = 60.0
"""Seconds in which a newborn must report itself."""
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
)
"""What workers and servers run."""


class _Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The nursery has loaded everything."""

    unfit: str
    """Why it must not fork; empty if it may."""


_Word = _Ready | Born | Unborn


class ForkFailed(RuntimeError):  # noqa: N818 - it names what happened
    """The nursery gave no process."""


def environment(cores: int, workers: int) -> dict[str, str]:
    """What the processes of a run have set besides the agent's own environment."""
    threads = max(1, cores // max(1, workers))
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        # The order of a set of strings must be the same in all processes, on every host.
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
        "PYTHONUNBUFFERED": "1",
    }


class ForkServer:
    """The agent's side of a nursery: a handle of its process, and orders to it.

    Args:
        environment: what is set besides the agent's own environment.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._surroundings = _surroundings(environment)
        self._environment = {**os.environ, **environment}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the nursery
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
        """Why it must not be used, once it is ready."""
        self._is_ready = False
        self._orders = 0
        self._born: list[_Forked] = []

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Whether one that was started now would be the same."""
        return self.poll() is None and self._surroundings == _surroundings(environment)

    def is_ready(self, timeout: float) -> bool:
        """Whether it has loaded everything, within `timeout` seconds."""
        if not self._is_ready and select.select([self._link], [], [], timeout)[0]:
            word = self._hear()
            if isinstance(word, _Ready):
                self._is_ready, self.unfit = True, word.unfit
        return self._is_ready

    def fork(self, start: Start) -> Handle:
        """A process that does what `start` says; it may have ended already.

        Raises:
            ForkFailed: it could not be born, or the nursery is gone.
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
        with adopting():
            with contextlib.suppress(OSError):  # if it is gone, nothing will be heard of it
                self._link.send(msgspec.json.encode(order))
            word = self._await_birth()
        if word is None:
            raise ForkFailed("the nursery is gone")
        if word.pid:
            self._born.append(_Forked(word.pid))
        if isinstance(word, Unborn) and word.words:
            raise ForkFailed(word.words)
        return self._born[-1]

    def _await_birth(self) -> Born | Unborn | None:
        """What became of the latest order; None if the nursery is gone."""
        deadline = time.monotonic() + _BIRTH_WITHIN
        while True:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._link], [], [], left)[0]:
                raise ForkFailed(f"the nursery gave no answer within {_BIRTH_WITHIN:.0f} s")
            word = self._hear()
            if word is None:
                return None
            if not isinstance(word, _Ready) and word.order == self._orders:
                return word

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float) -> None:
        """Wait for its end, at most `timeout` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)

    def close(self) -> None:
        """End it, and all that it forked."""
        self.retire()
        for forked in self._born:
            forked.end()

    def retire(self) -> None:
        """End it, and what it forked that was never handed over; all others live on."""
        if self._link.fileno() < 0:
            return
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        while select.select([self._link], [], [], 5.0)[0]:
            word = self._hear()
            if word is None:
                break
            known = {forked.pid for forked in self._born}
            if not isinstance(word, _Ready) and word.pid and word.pid not in known:
                _Forked(word.pid).end()
        self._link.close()
        self._log.close()

    def words(self) -> str:
        """What it wrote to its standard streams."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def _hear(self) -> _Word | None:
        """Its next word; None when there will be none."""
        try:
            data = self._link.recv(_MESSAGE)
        except OSError:
            return None
        return msgspec.json.decode(data, type=_Word) if data else None


class _Forked:
    """The handle of a process that a nursery forked: the agent's own child."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                # Somebody else in this process waited for all children. As subprocess does:
                self._code = 0
            else:
                self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, timeout: float) -> None:
        """Wait for its end, at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)

    def close(self) -> None:
        """Nothing: its files are its own."""

    def end(self) -> None:
        """Kill it if it still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.wait(5.0)


def _surroundings(environment: Mapping[str, str]) -> tuple[object, ...]:
    """All that a process takes over from the one that starts it, and that loading may read."""
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
    """Whether a nursery can be used here and nobody has switched it off."""
    return hasattr(os, "fork") and os.environ.get(SWITCH) != "0" and can_adopt()


_early: ForkServer | None = None


@contextlib.contextmanager
def ahead(environment: Mapping[str, str]) -> Iterator[None]:
    """Start a nursery while this process still loads torch itself; the first run takes it."""
    global _early  # noqa: PLW0603 - it waits for a run that a script may or may not begin
    _early = ForkServer(environment) if can_fork() else None
    try:
        yield
    finally:
        if _early is not None:
            _early.close()
            _early = None


@contextlib.contextmanager
def nursery(environment: Mapping[str, str]) -> Iterator[ForkServer | None]:
    """The nursery of one run, ended with it; None where there can be none."""
    global _early
    taken, _early = _early, None
    if taken is not None and not taken.suits(environment):
        taken.close()
        taken = None
    if taken is None and can_fork():
        taken = ForkServer(environment)
    try:
        yield taken
    finally:
        if taken is not None:
            taken.close()


def main(descriptor: int, agent: int) -> None:
    """Load everything, then fork for the agent until it hangs up; or be what was forked."""
    die_with(agent, signal.SIGKILL)
    show([*sys.orig_argv[:-1]])
    folder = str(Path.cwd())
    order = None
    with socket.socket(fileno=descriptor) as link:
        # A script that a worker starts with subprocess must not hold the link open.
        os.set_inheritable(descriptor, False)
        unfit = _load()
        link.send(msgspec.json.encode(_Ready(unfit)))
        while data := link.recv(_MESSAGE):
            order = msgspec.json.decode(data, type=Order)
            if fork(link, agent, order):
                break
            order = None
    if order is not None:
        become(order.start, folder, order.folder)


def _load() -> str:
    """Import what processes need; why this process must not fork, or nothing."""
    gc.disable()
    before = _threads()
    importlib.import_module("numpy")
    # The threads of numpy's linear algebra are ended before each fork, by itself.
    own = _threads() - before
    for module in _PRELOADED:
        importlib.import_module(module)
    import torch  # noqa: PLC0415 - here, and nowhere else in this file

    from manyhands.engine import load_late_parts  # noqa: PLC0415

    load_late_parts()
    gc.enable()
    # What is there already is never garbage; not to look at it saves copying its pages.
    gc.collect()
    gc.freeze()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch does not say
        return "CUDA is initialised in it"
    more = max(_threads() - own, threading.active_count()) - 1
    return f"{more} more threads run in it" if more else ""


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
