"""Processes in a new interpreter, each started by its own torch.distributed.elastic context.

A context that several processes share ends all of them when one dies, and a run may have to go on
without a worker that it lost (`docs/decisions/0008-processes.md`).
"""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.elastic.multiprocessing import (
    LogsDest,
    LogsSpecs,
    SignalException,
    start_processes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.live.processes.supervision import Start

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

# Its warnings repeat what the agent reports about every failure.
logging.getLogger("torch.distributed.elastic.multiprocessing").setLevel(logging.CRITICAL)


class _Files(LogsSpecs):
    """Two log files and an error file per process, named after it."""

    def __init__(self, start: Start) -> None:
        super().__init__(log_dir=str(Path(start.stem).parent))
        self._start = start

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:  # noqa: ARG002 - the contract
        return LogsDest(
            stdouts={0: self._start.out},
            stderrs={0: self._start.err},
            tee_stdouts={},
            tee_stderrs={},
            error_files={0: self._start.error},
        )

    @property
    def root_log_dir(self) -> str:
        return str(self._root_log_dir)


class ElasticProcess:
    """A process that executes `start` in a new interpreter."""

    def __init__(self, start: Start) -> None:
        context: Any = None
        while context is None:
            try:
                with _handlers_kept():
                    context = start_processes(
                        name=Path(start.stem).name,
                        entrypoint=sys.executable,
                        args={0: ("-m", start.module, *start.arguments)},
                        envs={0: start.settings},
                        logs_specs=_Files(start),
                    )
            except SignalException as error:
                # A signal in this moment was handled by torch, which has ended the new process. The
                # agent's own handler decides whether to go on.
                signal.raise_signal(error.sigval)
        self._context = context
        self.pid: int = context.pids()[0]
        # The declared type of a context has no attribute for the one process that it holds.
        self._process: subprocess.Popen[bytes] = context.subprocess_handlers[0].proc

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float) -> None:
        """Wait for its end, at most `timeout` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)

    def close(self) -> None:
        """Release its files. Only for a process that has ended."""
        self._context.close(timeout=5)


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Restore the agent's signal handlers, which torch elastic replaces by its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
