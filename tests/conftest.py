"""What all tests share: real data, real processes, and nothing left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parent.parent
os.environ.setdefault("OMP_NUM_THREADS", "1")
if "MANYHANDS_DATA" not in os.environ and (ROOT.parent / "shared" / "data").is_dir():
    os.environ["MANYHANDS_DATA"] = str(ROOT.parent / "shared" / "data")


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
                line = child.cmdline()
                if module in line and (not arguments or line[-len(arguments) :] == [*arguments]):
                    return child
        return None

    def worker(self, rank: int) -> psutil.Process | None:
        return self.named("manyhands.live.worker", str(rank))

    def coordinator(self) -> psutil.Process | None:
        return self.named("manyhands.live.coordinator")

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


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Start a command in an empty folder; everything it started is ended with the test."""
    started: list[Started] = []

    def begin(*command: str | Path, **environment: str) -> Started:
        output = tmp_path / f"output-{len(started)}.txt"
        with output.open("w") as stream:
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=tmp_path,
                stdout=stream,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "TMPDIR": str(tmp_path), **environment},
                start_new_session=True,
            )
        started.append(Started(process, tmp_path, output=output))
        return started[-1]

    yield begin
    for one in started:
        one.end()


@pytest.fixture
def run_script(start: Callable[..., Started], tmp_path: Path) -> Callable[..., Started]:
    """Start a script given as text with this Python."""

    def begin(text: str, *arguments: str, name: str = "script.py", **environment: str) -> Started:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return start(sys.executable, path, *arguments, **environment)

    return begin


@pytest.fixture
def interrupt() -> Callable[[Started], None]:
    """Press Ctrl-C: the foreground process alone gets it, as its children lead other groups."""

    def press(started: Started) -> None:
        os.killpg(started.process.pid, signal.SIGINT)

    return press
