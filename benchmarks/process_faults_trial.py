"""One run of `benchmarks.process_faults`, which suffers faults, and what is seen of them."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from manyhands.reports import Run
from manyhands.reports.figures.speed import accounting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

PATIENCE = 6.0
WITHIN = PATIENCE + 5.0
"""Seconds in which a process must be gone, and replaced."""
SILENCE = 30.0
"""Seconds for which the terminal may be silent."""
GIVE_UP = 60.0
"""Seconds after which a run that has not got over a fault counts as hanging."""
SAMPLES = 6400
DIVIDED = ("fully_sharded", "zero", "tensor", "pipeline")
"""Strategies whose workers go back to a checkpoint."""
SERVED = ("synchronous", "ssp", "asynchronous", "diloco")
"""Strategies with server processes."""
JOB = Path(__file__).with_name("process_faults_job.py")
MODULES = {
    "worker": "manyhands.live.worker.process",
    "server": "manyhands.live.server.process",
    "coordinator": "manyhands.live.coordinator.process",
    "fork server": "manyhands.live.processes.fork_server",
}
_NO_USER_CODE = "it executes no user code: only a signal can stop or end it"


def impossible(strategy: str, hosts: int, process: str, fault: str) -> str:
    """Why a fault of a process does not exist; empty if it does."""
    name, in_code = strategy.partition("(")[0], fault in ("exit0", "sleep", "gil")
    reasons = {
        f"{name} has no server processes": process == "server" and name not in SERVED,
        "the outer optimizer is not the user's: servers of diloco execute no user code": (
            process == "server" and name == "diloco" and in_code
        ),
        # It leaves with code 0 on SIGTERM.
        f"{_NO_USER_CODE} (coordinator)": process == "coordinator" and fault in ("sleep", "gil"),
        f"{_NO_USER_CODE} (fork server)": process == "fork server" and in_code,
        "an agent calls no user code while a run goes on; a thread of the script may sleep": (
            process == "agent" and fault == "sleep"
        ),
        "the agent of a host that joins does not load the script": (
            process == "agent" and hosts == 2 and in_code
        ),
    }
    return next((words for words, holds in reasons.items() if holds), "")


@dataclass(frozen=True)
class Cell:
    """What became of a fault."""

    strategy: str
    hosts: int
    process: str
    fault: str
    passed: bool
    gone: float | None = None
    """Seconds until the process was gone."""
    on: float | None = None
    """Seconds until all workers trained again."""
    silence: float = 0.0
    """The most seconds without a line on the terminal."""
    words: str = ""
    """What is missing, or the message."""


@dataclass
class Command:
    """A started command, the lines that it has printed, and its processes."""

    process: subprocess.Popen[str]
    lines: list[tuple[float, str]] = field(default_factory=list)
    seen: dict[int, psutil.Process] = field(default_factory=dict)
    reader: threading.Thread | None = None

    def read(self) -> None:
        """Read what it prints."""
        assert self.process.stdout is not None
        with self.process.stdout as printed:
            for line in printed:
                self.lines.append((time.monotonic(), line.rstrip()))

    def tree(self) -> list[psutil.Process]:
        """Its descendants that are alive."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self.seen.setdefault(child.pid, child)
        return [child for child in self.seen.values() if is_alive(child)]

    def find(self, process: str, *last: str) -> psutil.Process | None:
        """The present process of a kind, with these last arguments."""
        for child in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                line = [part for part in child.cmdline() if part]
                if MODULES[process] in line and (not last or line[-1:] == [*last]):
                    return child
        return None


def is_alive(process: psutil.Process) -> bool:
    """Whether a process has not ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


class Trial:
    """One run, which suffers faults.

    Args:
        strategy: its strategy.
        hosts: the number of hosts: one or two agents on this machine.
        folder: an empty folder.
    """

    def __init__(self, strategy: str, hosts: int, folder: Path) -> None:
        self.strategy, self.hosts = strategy, hosts
        self.is_divided = strategy.partition("(")[0] in DIVIDED
        # A worker is seen to train in its loss, which only the last stage of a pipeline computes.
        self._seen = (1,) if strategy.startswith("pipeline") else (0, 1)
        self.folder = folder
        folder.mkdir(parents=True)
        self._commands: list[Command] = []
        options = ["--patience", str(PATIENCE), "--output", "run"]
        options += ["--hosts", "a:1, b:1", "--listen", "127.0.0.1"] if hosts == 2 else []
        options += ["--workers", "2"] if hosts == 1 else []
        options += ["--checkpoint", "1s in memory"] if self.is_divided else []
        self.first = self._start("train", str(JOB), "--strategy", strategy, *options)
        self.second: Command | None = None
        if hosts == 2:
            self.join()
        self.await_training(time.monotonic(), 240.0)

    def _start(self, *command: str) -> Command:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
            "MANYHANDS_FAULTS_FOLDER": str(self.folder),
            "MANYHANDS_FAULTS_SAMPLES": str(SAMPLES),
            "PYTHONPATH": os.pathsep.join([str(JOB.parents[1]), os.environ.get("PYTHONPATH", "")]),
        }
        started = Command(
            subprocess.Popen(
                [sys.executable, "-m", "manyhands", *command],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        )
        started.reader = threading.Thread(target=started.read, daemon=True)
        started.reader.start()
        self._commands.append(started)
        return started

    def join(self) -> None:
        """Start the agent of the second host, by the command that the first one shows."""
        commands = self.folder / "run" / "join"
        self.until(commands.exists, 120.0)
        line = shlex.split(commands.read_text(encoding="utf-8").splitlines()[0])[1:]
        self.second = self._start(*line, "--output", f"b-{len(self._commands)}")

    def until(self, condition: Callable[[], object], seconds: float) -> bool:
        """Wait for a condition; whether it has become true in time."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end or self.first.process.poll() is not None:
                return bool(condition())
            time.sleep(0.05)
        return True

    def worker(self, rank: int) -> psutil.Process | None:
        """The present process of a worker."""
        command = self.first if rank == 0 or self.second is None else self.second
        return command.find("worker", str(rank))

    def steps(self, pid: int) -> list[float]:
        """When a worker has taken its steps."""
        with contextlib.suppress(OSError, ValueError):
            return [float(line) for line in (self.folder / f"steps-{pid}").read_text().split()]
        return []

    def trains(self, since: float) -> bool:
        """Whether all workers that compute a loss have done so since then."""
        for rank in self._seen:
            process = self.worker(rank)
            taken = self.steps(process.pid) if process is not None else []
            if not taken or taken[-1] < since:
                return False
        return True

    def await_training(self, since: float, seconds: float = GIVE_UP) -> bool:
        """Wait until the workers train."""
        return self.until(lambda: self.trains(since), seconds)

    def settle(self) -> None:
        """Wait until no worker is at its first step, and there is a checkpoint to go back to."""
        begun = time.monotonic()
        time.sleep(4.0 if self.is_divided else 3.0)
        self.await_training(begun + 2.0)

    def said(self, since: float) -> list[tuple[float, str]]:
        """The lines that all hosts have printed since then."""
        lines = [one for command in self._commands for one in list(command.lines)]
        return sorted(one for one in lines if one[0] >= since)

    def victim(self, process: str) -> psutil.Process | None:
        """The process that is to fail; on two hosts one of the second, if it has it."""
        there = self.second or self.first
        if process == "agent":
            return psutil.Process(there.process.pid)
        if process == "worker":
            return self.worker(1)
        if process == "loader":
            worker = self.worker(1)
            children = [] if worker is None else worker.children()
            return next((one for one in children if is_alive(one)), None)
        if process == "fork server":
            return there.find(process)
        return self.first.find(process, *(["0"] if process == "server" else []))

    def suffer(self, process: str, fault: str) -> Cell:
        """Inject a fault, and watch what becomes of it."""
        self.settle()
        victim = self.victim(process)
        about = (self.strategy, self.hosts, process, fault)
        if victim is None:
            return Cell(*about, passed=False, words="there is no such process")
        begun = time.monotonic()
        inject(victim.pid, process, fault, self.folder)
        if process == "agent":
            return self._suffer_agent(about, victim, fault, begun)
        gone: float | None = None

        def is_over() -> bool:
            nonlocal gone
            if gone is None and not is_alive(victim):
                gone = time.monotonic()
            return gone is not None and self._is_replaced(process, victim) and self.trains(gone)

        over = self.until(is_over, GIVE_UP)
        now = time.monotonic()
        on = now - begun if over else None
        return self._judge(about, begun, now, None if gone is None else gone - begun, on)

    def _is_replaced(self, process: str, victim: psutil.Process) -> bool:
        if process in ("worker", "loader"):
            return True
        now = self.victim(process)
        return now is not None and now.pid != victim.pid

    def _judge(
        self,
        about: tuple[str, int, str, str],
        begun: float,
        now: float,
        gone: float | None,
        on: float | None,
    ) -> Cell:
        process = about[2]
        self.until(lambda: self._named(process, begun), 3.0)
        lines = self.said(begun)
        times = [begun, *(at for at, _ in lines if at <= now), now]
        silence = max(after - before for before, after in itertools.pairwise(times))
        named = self._named(process, begun)
        faults = []
        if gone is None or gone > WITHIN:
            faults.append(f"gone after {gone} s")
        if on is None:
            faults.append(f"not going on after {now - begun:.0f} s")
        if silence > SILENCE:
            faults.append(f"silent for {silence:.0f} s")
        if not named:
            faults.append("not named")
        words = "; ".join(faults) or named[0]
        if faults:
            words += " | " + " / ".join(line for _, line in lines[-12:])
        rounded = [None if value is None else round(value, 1) for value in (gone, on)]
        return Cell(
            *about, not faults, rounded[0], rounded[1], silence=round(silence, 1), words=words
        )

    def _named(self, process: str, begun: float) -> list[str]:
        """The lines that name a process, or say what of it is replaced."""
        names = {
            "worker": ("worker 1",),
            "loader": ("loader processes are restarted", "worker 1 on"),
            "server": ("server 0",),
        }.get(process, (process,))
        lines = (line.replace("-", " ") for _, line in self.said(begun))
        return [line for line in lines if any(name in line for name in names)]

    def _suffer_agent(
        self, about: tuple[str, int, str, str], victim: psutil.Process, fault: str, begun: float
    ) -> Cell:
        """The fault of an agent: on one host it ends the run, or keeps it waiting."""
        if self.hosts == 1 and fault in ("kill", "exit0"):
            while self.first.tree() and time.monotonic() < begun + WITHIN:
                time.sleep(0.05)
            now, words = time.monotonic(), self._agents_words(begun)
            passed = bool(words) and not self.first.tree()
            return Cell(*about, passed, round(now - begun, 1), None, words=words or "not said")
        told = self.until(lambda: self._agents_words(begun), SILENCE)
        named = time.monotonic()
        words = self._agents_words(begun)
        if self.hosts == 1 and fault == "gil":
            self.until(lambda: False, 1.0)
            return Cell(*about, told, round(named - begun, 1), None, words=words or "not said")
        if fault == "stop" and self.hosts == 1:
            victim.send_signal(signal.SIGCONT)
            over = self.await_training(time.monotonic())
            on = time.monotonic() - begun if over else None
            return Cell(
                *about,
                told and over,
                round(named - begun, 1),
                None if on is None else round(on, 1),
                words=words or "not said",
            )
        # Its host counts as cut off; its user starts it again.
        lost = self.until(lambda: self._is_told(begun, "no heartbeat from its host"), GIVE_UP)
        gone = time.monotonic() - begun
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in (*(self.second.tree() if self.second else ()), victim):
                one.kill()
        time.sleep(0.5)
        again = time.monotonic()
        self.join()
        over = self.await_training(again, 2 * GIVE_UP)
        on = time.monotonic() - begun if over else None
        passed = told and lost and over and gone <= WITHIN
        return Cell(
            *about,
            passed,
            round(gone, 1),
            None if on is None else round(on, 1),
            words=words if passed else " / ".join(line for _, line in self.said(begun)[-12:]),
        )

    def _agents_words(self, begun: float) -> str:
        return next((line for _, line in self.said(begun) if "agent" in line or "host" in line), "")

    def _is_told(self, begun: float, words: str) -> bool:
        return any(words in line for _, line in self.said(begun))

    def finish(self) -> str:
        """Let the run finish; what is wrong with its end, or an empty string."""
        (self.folder / "fast").touch()
        if not self.until(lambda: self.first.process.poll() is not None, 240.0):
            return "the run does not end"
        if self.first.process.returncode != 0:
            return "the run failed: " + " / ".join(line for _, line in self.first.lines[-6:])
        run = Run(self.folder / "run")
        counted = accounting(run.trace)
        if not (self.folder / "run" / "model.safetensors").exists():
            return "no model"
        if run.samples != SAMPLES or counted.lost:
            return f"{run.samples} of {SAMPLES} samples seen, {counted.lost} lost"
        return ""

    def end(self) -> None:
        """End what is left of it, by id."""
        for command in self._commands:
            left = command.tree()
            with contextlib.suppress(psutil.NoSuchProcess):
                left.append(psutil.Process(command.process.pid))
            for one in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            command.process.wait()
            if command.reader is not None:
                command.reader.join(5.0)


def inject(pid: int, process: str, fault: str, folder: Path) -> None:
    """Have a process fail."""
    if fault == "kill":
        os.kill(pid, signal.SIGKILL)
    elif fault == "stop":
        os.kill(pid, signal.SIGSTOP)
    elif process == "coordinator":
        # It leaves with code 0 when it is told to end.
        os.kill(pid, signal.SIGTERM)
    else:
        (folder / f"{pid}.{fault}").touch()


def suffered(
    strategy: str, hosts: int, pairs: Iterable[tuple[str, str]], folder: Path
) -> Iterator[Cell]:
    """The cells of some faults, in as few runs as possible."""
    todo = [pair for pair in pairs if not impossible(strategy, hosts, *pair)]
    attempt = 0
    while todo:
        attempt += 1
        trial = Trial(strategy, hosts, folder / f"run-{attempt}")
        cells: list[Cell] = []
        ended = False
        try:
            while todo and not ended and trial.first.process.poll() is None:
                ends = hosts == 1 and todo[0][0] == "agent" and todo[0][1] != "stop"
                if ends and cells:
                    break  # it ends a run, and the end of this one is looked at first
                process, fault = todo.pop(0)
                cells.append(trial.suffer(process, fault))
                ended = not cells[-1].passed or (process == "agent" and cells[-1].on is None)
                print(line_of(cells[-1]), flush=True)
            wrong = "" if ended else trial.finish()
            if not cells and todo:
                process, fault = todo.pop(0)
                lines = " / ".join(line for _, line in trial.first.lines[-8:])
                words = f"did not begin: {lines}"
                cells.append(Cell(strategy, hosts, process, fault, passed=False, words=words))
        finally:
            trial.end()
            shutil.rmtree(trial.folder, ignore_errors=True)
        if wrong:
            print(f"{strategy} on {hosts} hosts: {wrong}", flush=True)
        for cell in cells:
            yield cell if not wrong else Cell(**{**asdict(cell), "passed": False, "words": wrong})


def line_of(cell: Cell) -> str:
    """A cell in one line."""
    seconds = f"gone {cell.gone} s, on {cell.on} s, silent {cell.silence} s"
    verdict = "passed" if cell.passed else "FAILED"
    where = f"{cell.strategy} on {cell.hosts} host{'s' * (cell.hosts > 1)}"
    return f"{verdict}: {where}, {cell.process} {cell.fault}: {seconds}: {cell.words[:400]}"
