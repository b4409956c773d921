"""Two workers that are measured together, and the processes behind them."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.peers.work import WORKERS
from benchmarks.turnstile import Side


class Pair:
    """The two workers of one system, each at its own turnstile."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._sides = [Side(f"{name}-{rank}", folder) for rank in range(WORKERS)]

    @property
    def paths(self) -> list[str]:
        """Where its workers find their turnstiles."""
        return [side.path for side in self._sides]

    def wait_ready(self, processes: list[subprocess.Popen[str]]) -> None:
        """Wait for both workers, or raise if one of the processes ends."""
        for side in self._sides:
            side.wait_ready(processes)

    def rate(self, steps: int) -> float:
        """Steps per second of both workers, each of whom makes so many, by the slower one."""
        with ThreadPoolExecutor(WORKERS) as threads:
            return WORKERS * min(threads.map(lambda side: side.rate(steps), self._sides))


class Forked(multiprocessing.get_context("fork").Process):  # type: ignore[misc]
    """A process that has imported everything already, because its parent has."""

    def poll(self) -> int | None:
        """How it ended, if it has; as a `Popen` says it."""
        return self.exitcode


@contextlib.contextmanager
def forked(processes: Iterable[Forked]) -> Iterator[list[Forked]]:
    """Started; ended at the end, whatever happens."""
    started = []
    try:
        for process in processes:
            process.start()
            started.append(process)
        yield started
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.join()


@contextlib.contextmanager
def session(process: subprocess.Popen[str]) -> Iterator[None]:
    """End a process that was started with a session of its own, and whatever it has started.

    If this process is killed itself, a watcher does it: it sees its input close.
    """
    group = process.pid
    watcher = subprocess.Popen(
        ["sh", "-c", 'cat > /dev/null; kill -KILL -- "-$1"', "sh", str(group)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield
    finally:
        watcher.kill()
        watcher.communicate()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGCONT)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        process.wait()
