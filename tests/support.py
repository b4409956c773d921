"""What tests share besides fixtures: waiting for a condition, and started commands."""

import contextlib
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parent.parent


def wait_for(condition: Callable[[], object], seconds: float, what: str) -> float:
    """Wait until the condition holds; how long it took. Fails after `seconds`."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > seconds:
            pytest.fail(f"{what}: not within {seconds} s")
        time.sleep(0.05)
    return time.monotonic() - begun


@dataclass
class Started:
    """A started command with everything that descends from it."""

    process: subprocess.Popen[str]
    folder: Path
    seen: dict[int, psutil.Process] = field(default_factory=dict)
    output: Path = Path()

    def tree(self) -> list[psutil.Process]:
        """All descendants seen so far that are alive."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self.seen.setdefault(child.pid, child)
        alive = []
        for child in self.seen.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
                    alive.append(child)
        return alive

    def named(self, module: str, *arguments: str) -> psutil.Process | None:
        """The descendant that runs a module of ours with these last arguments."""
        for child in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                line = [part for part in child.cmdline() if part]
                if module in line and (not arguments or line[-len(arguments) :] == [*arguments]):
                    return child
        return None

    def worker(self, rank: int) -> psutil.Process | None:
        return self.named("manyhands.live.worker.process", str(rank))

    def coordinator(self) -> psutil.Process | None:
        return self.named("manyhands.live.coordinator.process")

    def fork_server(self) -> psutil.Process | None:
        return self.named("manyhands.live.processes.fork_server")

    def text(self) -> str:
        """What it printed so far, both streams in order."""
        return self.output.read_text(encoding="utf-8", errors="replace")

    def finish(self, seconds: float = 120) -> int:
        """Its exit code."""
        begun = time.monotonic()
        while self.process.poll() is None:
            self.tree()
            if time.monotonic() - begun > seconds:
                pytest.fail(f"did not end within {seconds} s; it printed:\n{self.text()}")
            time.sleep(0.05)
        return self.process.returncode

    def end(self) -> None:
        """End what is left, by id."""
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
