"""Supervision: watching and ending the processes of one host.

Every process leads a process group, so its own child processes end with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from manyhands.wire.leasing import Eject

FINISHED = 85
"""The exit code of a worker or server that has done its work. User code may end a process with
code 0 at any time (`os._exit(0)`), so 0 does not tell."""
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


class ErrorReport(msgspec.Struct, frozen=True):
    """The error report of a failing process, in the file that torch elastic assigned to it."""

    message: str
    timestamp: int
    """Whole seconds, as torch elastic reads them."""
    at: float
    """The same moment on the host's monotonic clock, which all of its processes share."""
    consequence: bool
    """Whether the process failed because another one was lost."""
    traceback: str


@dataclass(frozen=True)
class Exit:
    """How a process ended."""

    name: str
    host: str
    pid: int
    code: int
    """The exit code; negative for a signal."""
    report: ErrorReport | None
    words: str = ""
    """Why it counts as ended, if its exit was not observed."""
    incarnation: int = 0
    """Its incarnation number; 0 if that is not known."""
    at: float = 0.0
    """When it ended, on the monotonic clock; processes that end together have distinct times."""
    early: bool = False
    """Whether it exited with code 0 before it had done its work."""

    @property
    def failed(self) -> bool:
        """Whether it ended before it had done its work."""
        return self.code != 0 or self.early

    @property
    def killed(self) -> bool:
        """Whether it was lost, as opposed to an exception, which a successor would raise again."""
        return (self.code < 0 or self.early) and self.report is None

    def __str__(self) -> str:
        process = f"{self.name.replace('-', ' ')} on {self.host} (pid {self.pid})"
        if self.words:
            return f"{process}: {self.words}"
        if self.report:
            return f"{process} failed"
        if self.code == -signal.SIGKILL:
            return f"{process} was killed (SIGKILL), probably out of memory or by hand"
        if self.code < 0:
            return f"{process} was ended by {_signal_name(-self.code)}"
        if self.early:
            return f"{process} exited with code 0 before its work was done"
        return f"{process} exited with code {self.code} and no traceback"


def first_failure(exits: Iterable[Exit]) -> Exit | None:
    """The failure that caused the others.

    A killed process leaves no report and its peers fail because of it, so it comes first, and among
    several the one that ended first; then the earliest report that is not itself a consequence;
    then the earliest of all. Ties are broken by name, so the result does not depend on the order of
    the exits.
    """
    failed = [exit_ for exit_ in exits if exit_.failed]
    return min(failed, key=_priority, default=None)


def _priority(exit_: Exit) -> tuple[int, float, str]:
    if exit_.report is None:
        return (0, exit_.at, exit_.name)
    return (2 if exit_.report.consequence else 1, exit_.report.at, exit_.name)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # the real-time signals between the first and the last have no name
        return f"signal {number}"


class Start(msgspec.Struct, frozen=True):
    """A process to be started: `python -m module`, its arguments, files and environment."""

    module: str
    arguments: tuple[str, ...]
    stem: str
    """The path of its log files, without suffix."""
    environment: dict[str, str]
    """Variables in addition to the agent's environment."""

    @property
    def out(self) -> str:
        """The file of its standard output."""
        return f"{self.stem}.out"

    @property
    def err(self) -> str:
        """The file of its standard error."""
        return f"{self.stem}.err"

    @property
    def error(self) -> str:
        """The file of its error report."""
        return f"{self.stem}.error.json"

    @property
    def settings(self) -> dict[str, str]:
        """Its environment variables, with the path of the error report."""
        return {**self.environment, _ERROR_FILE: self.error}


class Handle(Protocol):
    """A started process: its id, exit code and resources."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""

    def wait(self, timeout: float) -> None:
        """Wait for its end, at most `timeout` seconds."""

    def close(self) -> None:
        """Release its resources. Only for a process that has ended."""


class Process:
    """One started process.

    Args:
        name: `worker-2`, `coordinator-0`.
        handle: the process.
        error: the file of its error report.
        host: the name of this host.
        incarnation: its incarnation number.
        finishes: whether it ends with `FINISHED` when it has done its work.
    """

    def __init__(
        self,
        name: str,
        handle: Handle,
        error: Path,
        host: str | None = None,
        incarnation: int = 0,
        *,
        finishes: bool = False,
    ) -> None:
        self.name = name
        self.host = socket.gethostname() if host is None else host
        self.pid = handle.pid
        self._handle = handle
        self._error = error
        self._exit: Exit | None = None
        self._ejected = ""
        self._incarnation = incarnation
        self._finishes = finishes
        # At once: of processes that end before they are watched the kernel's order is lost.
        _ends.watch(self.pid)

    def poll(self) -> Exit | None:
        """How it ended; None while it runs."""
        if self._exit is None:
            code = self._handle.poll()
            if code is not None:
                early = self._finishes and code == 0
                code = 0 if code == FINISHED else code
                about = (self.name, self.host, self.pid, code, self._report(), self._ejected)
                self._exit = Exit(*about, self._incarnation, _ends.at(self.pid), early)
                self._end_descendants()
        return self._exit

    def wait(self, timeout: float) -> Exit | None:
        """How it ended, if it does within `timeout` seconds."""
        self._handle.wait(timeout)
        return self.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its process group."""
        # Until it is polled the kernel gives its number to no other process; after that a signal
        # could reach another one.
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def eject(self, words: str) -> None:
        """Kill it because it delays the other workers; SIGKILL also ends a stopped process."""
        # Before the signal: the end may be polled at once, and would be told as a kill by hand.
        self._ejected = words
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        """Release its files. Only for a process that has ended."""
        self._handle.close()

    def _report(self) -> ErrorReport | None:
        for path in (self._error, _spare(self._error)):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                found = msgspec.json.decode(path.read_bytes(), type=ErrorReport)
                if path != self._error:
                    path.unlink()
                return found
        return None

    def _end_descendants(self) -> None:
        """Kill what is left of its process group, such as processes of data loaders."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def eject(order: Eject, processes: Mapping[str, Process]) -> None:
    """Carry out an order of the coordinator, unless the process has a successor already."""
    process = processes.get(order.name)
    if process is not None and order.pid in {0, process.pid}:
        process.eject(order.words)


def end(processes: Iterable[Process], grace: float) -> None:
    """End processes: SIGTERM, and SIGKILL after `grace` seconds.

    A process that is stopped or waits in a collective does not react to SIGTERM.
    """
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.signal(signal.SIGTERM)
        # After SIGTERM, which a stopped process gets only when it continues: it then ends before it
        # does anything else.
        process.signal(signal.SIGCONT)
    await_end(running, grace)
    for process in running:
        process.signal(signal.SIGKILL)
    await_end(running, 5.0)


def await_end(processes: Iterable[Process], seconds: float) -> None:
    """Wait until all processes have ended, at most this many seconds."""
    deadline = time.monotonic() + seconds
    for process in processes:
        process.wait(max(0.0, deadline - time.monotonic()))


class _Ends:
    """The times at which processes end, in their true order.

    Polling processes one after the other finds those that ended since the last poll in the order of
    polling. The kernel knows the true order: a process's descriptor becomes readable when it ends,
    and epoll lists descriptors in the order in which they became readable.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """A script may start runs in several threads."""
        self._epoll: select.epoll | None = None
        self._descriptors: dict[int, int] = {}
        self._ended: dict[int, float] = {}
        self._last = 0.0

    def watch(self, pid: int) -> None:
        """Watch for the end of this child."""
        with self._lock:
            # The kernel may have given the number of an earlier child again.
            self._ended.pop(pid, None)
            try:
                descriptor = os.pidfd_open(pid)
            except (AttributeError, OSError):  # an older kernel, or no descriptors left
                return
            if self._epoll is None:
                self._epoll = select.epoll()
            self._epoll.register(descriptor, select.EPOLLIN)
            self._descriptors[descriptor] = pid

    def at(self, pid: int) -> float:
        """When this child, which has ended, ended."""
        with self._lock:
            if self._epoll is not None:
                for descriptor, _ in self._epoll.poll(0, max(1, len(self._descriptors))):
                    self._epoll.unregister(descriptor)
                    os.close(descriptor)
                    self._ended[self._descriptors.pop(descriptor)] = self._next()
            return self._ended.pop(pid, None) or self._next()

    def _next(self) -> float:
        # The next larger number at least: ends that one poll finds must stay in the kernel's order.
        self._last = max(time.monotonic(), math.nextafter(self._last, math.inf))
        return self._last


_ends = _Ends()


def leave_report(error: BaseException, text: str, *, consequence: bool, at: float) -> None:
    """Write why this process fails to its error report, for the agent, and to its log."""
    with contextlib.suppress(OSError):  # the disk may be full
        sys.stderr.write(text)
        sys.stderr.flush()
    path = os.environ.get(_ERROR_FILE)
    if path:
        message = f"{type(error).__name__}: {error}"
        report = ErrorReport(message, int(time.time()), at, consequence, text)
        encoded = msgspec.json.encode(report)
        try:
            Path(path).write_bytes(encoded)
        except OSError:  # the disk of the run's folder may be full, or the folder deleted
            with contextlib.suppress(OSError):
                spare = _spare(Path(path))
                spare.unlink(missing_ok=True)
                with open(spare, "xb", opener=_private) as file:
                    file.write(encoded)


def _spare(path: Path) -> Path:
    """Where an error report is written if it cannot be written in the run's folder."""
    digest = hashlib.sha256(str(path).encode()).hexdigest()
    return Path(tempfile.gettempdir()) / f"manyhands-error-{digest[:16]}.json"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
