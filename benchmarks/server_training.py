"""Updates per second of whole asynchronous training, ours against other people's servers."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import median_interval
from benchmarks.server_sides import Pair, session

PEERS = {  # the one that spins comes first: it is stopped as soon as it is ready
    "torch RPC": "benchmarks.peers.torch_rpc_server",
    "torchft": "benchmarks.peers.torchft_server",
    "Ray actors": "benchmarks.peers.ray_server",
}
_OURS = "Manyhands"
_SPINNING = "torch RPC"
"""Its threads poll without a pause even when there is nothing to do: when it is not its turn its
processes are stopped, or they would slow down everybody else."""
_FIRST = 20
"""Steps of each worker in the turn that tells how fast a system is."""


@dataclass(frozen=True)
class _System:
    """A system that trains when it is its turn."""

    title: str
    pair: Pair
    process: subprocess.Popen[str]
    log: Path

    def wait_ready(self) -> None:
        """Wait for its workers."""
        self.pair.wait_ready([self.process])
        self._rest()

    def rate(self, steps: int) -> float:
        """Updates per second of both workers, each of whom makes so many."""
        if self.title == _SPINNING:
            os.killpg(self.process.pid, signal.SIGCONT)
        try:
            return self.pair.rate(steps)
        finally:
            self._rest()

    def _rest(self) -> None:
        if self.title == _SPINNING:
            os.killpg(self.process.pid, signal.SIGSTOP)


def measure(size: str, rounds: int, seconds: float) -> dict[str, object]:
    """Rates in rounds in which every system has a turn of about so many seconds, in rotation."""
    turns: dict[str, int] = {}
    rates: dict[str, list[float]] = {}
    skipped: dict[str, str] = {}

    def warm_up(system: _System) -> None:
        system.wait_ready()
        system.rate(_FIRST)
        turns[system.title] = max(5, round(system.rate(_FIRST) * seconds / 2))
        system.rate(turns[system.title] // 2)
        rates[system.title] = []

    def take_turn(system: _System) -> None:
        rates[system.title].append(system.rate(turns[system.title]))

    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        systems = []
        for number, title in enumerate((*PEERS, _OURS)):
            folder = Path(name) / str(number)
            folder.mkdir()
            systems.append(stack.enter_context(_started(title, size, folder)))
        systems = _those_that(warm_up, systems, skipped)
        for _ in range(rounds):
            systems = _those_that(take_turn, [*systems[1:], systems[0]], skipped)
    return _figures(size, {system.title: rates[system.title] for system in systems}, skipped)


def _those_that(
    act: Callable[[_System], None], systems: list[_System], skipped: dict[str, str]
) -> list[_System]:
    """The systems that do it, in turn. A peer that fails is left out; its log says why."""
    able = []
    for system in systems:
        try:
            act(system)
        except (RuntimeError, OSError, ValueError) as error:
            if system.title == _OURS:
                raise
            lines = [line for line in system.log.read_text().splitlines() if line.strip()]
            skipped[system.title] = lines[-1] if lines else str(error)
        else:
            able.append(system)
    return able


@contextlib.contextmanager
def _started(title: str, size: str, folder: Path) -> Iterator[_System]:
    """A system, begun; everything of it is ended at the end."""
    pair = Pair(title.replace(" ", "-"), folder)
    command = [sys.executable, "-m", "benchmarks.server_job"]
    if title in PEERS:
        python = os.environ.get("MANYHANDS_PEERS_PYTHON", sys.executable)
        command = [python, "-m", PEERS[title], size]
    root = Path(__file__).parent.parent
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "SERVER_FOLDER": str(folder),
        "SERVER_MODEL": size,
        "TURNSTILES": ":".join(pair.paths),
        # What peers leave in one's home (Ray: a token) and among temporary files goes with this.
        "HOME": str(folder),
        "TMPDIR": str(folder),
    }
    log = folder / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            stdout=file,
            stderr=file,
            text=True,
            start_new_session=True,
        )
    with session(process):
        yield _System(title, pair, process, log)


def _figures(
    size: str, rates: dict[str, list[float]], skipped: dict[str, str]
) -> dict[str, object]:
    figures: dict[str, object] = {"skipped": skipped}
    for title in sorted(rates, key=[_OURS, *PEERS].index):
        values = rates[title]
        middle = median_interval(values)[0]
        figure = {"per_second": middle, "least": min(values), "most": max(values)}
        words = f"{size:>4}  {title:12} {middle:8.1f}  ({min(values):.1f} … {max(values):.1f})"
        if title != _OURS and _OURS in rates:
            quotients = [ours / peer for ours, peer in zip(rates[_OURS], values, strict=True)]
            ratio, low, high = median_interval(quotients)
            figure |= {"ratio": ratio, "low": low, "high": high}
            words += f"   ours / it {ratio:.2f} (95 %: {low:.2f} … {high:.2f})"
        figures[title] = figure
        print(words, flush=True)
    for title, reason in skipped.items():
        print(f"{size:>4}  {title:12}  skipped: {reason}", flush=True)
    return figures
