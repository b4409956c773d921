"""Starting, watching and ending the processes of one host.

Each process has a torch.distributed.elastic context of its own: a shared one ends all siblings
when one of them dies. Every process leads a process group, so what it started ends with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, start_processes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

# Its warnings repeat, in other words, what the agent says about every failure.
logging.getLogger("torch.distributed.elastic.multiprocessing").setLevel(logging.CRITICAL)


class ErrorReport(msgspec.Struct, frozen=True):
    """What a failing process leaves behind, at the path that torch elastic gave it."""

    message: str
    timestamp: int
    """Whole seconds, as torch elastic reads them."""
    at: float
    """The same moment, exactly."""
    consequence: bool
    """The process failed because another one was lost."""
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

    @property
    def failed(self) -> bool:
        """Whether it ended otherwise than by finishing."""
        return self.code != 0

    def __str__(self) -> str:
        who = f"{self.name.replace('-', ' ')} on {self.host} (pid {self.pid})"
        if self.report:
            return f"{who} failed"
        if self.code == -signal.SIGKILL:
            return f"{who} was killed (SIGKILL), probably out of memory or by hand"
        if self.code < 0:
            return f"{who} was ended by {_signal_name(-self.code)}"
        return f"{who} left with exit code {self.code} and no traceback"


def first_failure(exits: Iterable[Exit]) -> Exit | None:
    """The failure that the others follow from.

    A killed process leaves no report and its peers fail because of it, so it comes first; then
    the earliest report that is not itself a consequence; then the earliest at all. Among equals
    the name decides, so that the same exits give the same words in any order.
    """
    failed = [exit_ for exit_ in exits if exit_.failed]
    return min(failed, key=_priority, default=None)


def _priority(exit_: Exit) -> tuple[int, float, str]:
    if exit_.report is None:
        return (0, 0.0, exit_.name)
    return (2 if exit_.report.consequence else 1, exit_.report.at, exit_.name)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # the real-time signals between the first and the last have no name
        return f"signal {number}"


class _Files(LogsSpecs):
    """Two log files and an error file per process, by its name."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(log_dir=str(folder))
        self._stem = folder / name

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:  # noqa: ARG002 - the contract
        return LogsDest(
            stdouts={0: f"{self._stem}.out"},
            stderrs={0: f"{self._stem}.err"},
            tee_stdouts={},
            tee_stderrs={},
            error_files={0: f"{self._stem}.error.json"},
        )

    @property
    def root_log_dir(self) -> str:
        return str(self._root_log_dir)


class Process:
    """One started process.

    Args:
        name: `worker-2`, `coordinator-0`.
        module: the module that it runs, as in `python -m`.
        arguments: its command line.
        logs: the folder of its log files.
        environment: what is set besides the agent's own environment.
        log: the name of its files, where it differs from its own.
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Iterable[str],
        logs: Path,
        environment: Mapping[str, str],
        log: str = "",
    ) -> None:
        self.name = name
        self.host = socket.gethostname()
        log = log or name
        self._error = logs / f"{log}.error.json"
        self._exit: Exit | None = None
        with _handlers_kept():
            context: Any = start_processes(
                name=name,
                entrypoint=sys.executable,
                args={0: ("-m", module, *arguments)},
                envs={0: {**environment, "TORCHELASTIC_ERROR_FILE": str(self._error)}},
                logs_specs=_Files(logs, log),
            )
        self._context = context
        self.pid: int = context.pids()[0]
        # The declared type of a context has no attribute for the one process that it holds.
        self._process: subprocess.Popen[bytes] = context.subprocess_handlers[0].proc

    def poll(self) -> Exit | None:
        """How it ended; None while it runs."""
        if self._exit is None:
            code = self._process.poll()
            if code is not None:
                self._exit = Exit(self.name, self.host, self.pid, code, self._report())
                self._end_descendants()
        return self._exit

    def wait(self, timeout: float) -> Exit | None:
        """How it ended, if it does within `timeout` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        return self.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and whatever it started."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def close(self) -> None:
        """Let go of its files. Only for a process that has ended."""
        self._context.close(timeout=5)

    def _report(self) -> ErrorReport | None:
        try:
            return msgspec.json.decode(self._error.read_bytes(), type=ErrorReport)
        except (OSError, msgspec.MsgspecError):
            return None

    def _end_descendants(self) -> None:
        """A dead leader's group can live on (data loaders): end it by the leader's id."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Torch elastic installs signal handlers that raise its own exception; the agent has its."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def end(processes: Iterable[Process], grace: float) -> None:
    """End processes: a polite signal, and after `grace` seconds the last one.

    A process that is stopped or waits in a collective answers no polite signal.
    """
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGCONT)
    _wait_all(running, grace)
    for process in running:
        process.signal(signal.SIGKILL)
    _wait_all(running, 5.0)


def _wait_all(processes: Iterable[Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        process.wait(max(0.0, deadline - time.monotonic()))


def leave_report(error: BaseException, text: str, *, consequence: bool, at: float) -> None:
    """Write why this process fails to where its agent will look, and into its own log."""
    sys.stderr.write(text)
    sys.stderr.flush()
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        report = ErrorReport(f"{type(error).__name__}: {error}", int(at), at, consequence, text)
        Path(path).write_bytes(msgspec.json.encode(report))
