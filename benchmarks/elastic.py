"""Workers of `allreduce` that are killed at seeded moments: how soon the others step again.

Runs of four workers, in each of which one worker after the other is killed with SIGKILL: at its
start, in a step, in an evaluation, while the model is stored. Times are read from the traces: from
the moment at which the agent notices the death to the first step of the remaining workers, and to
the moment at which the successor is one of the group. A run must finish, with all its samples, and
repeat one step per kill at most.

With torchft installed, the same kills at the same moments are given to it: its workers train the
same model at the same pace, a lighthouse keeps their quorum, and a successor is started at once.
Then times run from the signal itself, for both.

    python -m benchmarks.elastic --kills 100
"""

import argparse
import contextlib
import importlib.util
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.figures import keep, report
from manyhands.reports import Run
from manyhands.trace import read

WORKERS = 4
PER_RUN = 3
SAMPLES = 30 * 4000
STEP_WITHIN, BACK_WITHIN = 2.0, 10.0
"""Seconds until the others step again, and until there are four again."""
_LONGEST = 240.0
"""Seconds after which a run counts as hanging."""
_SCRIPT = Path(__file__).parent / "elastic_job.py"
_WORKER = "manyhands.live.worker.process"


@dataclass(frozen=True)
class Outcome:
    """What became of the workers that were killed in one run."""

    kills: int
    stepped: tuple[float, ...]
    """Seconds from detection to the next step, of kills after which there was one."""
    back: tuple[float, ...]
    """Seconds from detection to the successor's first group, of successors that joined."""
    repeated: int
    """Steps that were repeated."""
    finished: bool
    words: str = ""
    from_signal: tuple[float, ...] = ()
    """Seconds from each signal to the next step of another worker."""
    back_from_signal: tuple[float, ...] = ()
    """Seconds from each signal to a step or group of all workers."""


def moments(seed: int) -> list[float]:
    """Seconds that pass with all workers present before each kill of a run."""
    draw = random.Random(seed)  # noqa: S311 - the same moments every time
    return [draw.uniform(0.0, 2.0), *(draw.uniform(0.5, 5.0) for _ in range(PER_RUN - 1))]


def workers_of(agent: psutil.Process) -> dict[int, psutil.Process]:
    """The workers that an agent has at present, by rank."""
    found = {}
    for child in agent.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            line = [part for part in child.cmdline() if part]
            if _WORKER in line and child.status() != psutil.STATUS_ZOMBIE:
                found[int(line[-1])] = child
    return found


def run_with_kills(seed: int, folder: Path) -> Outcome:
    """One run in which workers are killed at moments that the seed decides."""
    draw = random.Random(seed)  # noqa: S311 - the same moments every time
    command = [
        *(sys.executable, "-m", "manyhands", "train", str(_SCRIPT), "--strategy", "allreduce()"),
        *("--workers", str(WORKERS), "--output", str(folder / "run")),
    ]
    log = folder / "output.txt"
    with log.open("w") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
    agent, begun = psutil.Process(process.pid), time.monotonic()
    signals: list[float] = []
    due = moments(seed)
    at: float | None = None
    try:
        while process.poll() is None:
            if time.monotonic() - begun > _LONGEST:
                return Outcome(len(signals), (), (), 0, finished=False, words="the run hangs")
            here = workers_of(agent)
            if at is None and due and len(here) == WORKERS:
                at = time.monotonic() + due.pop(0)
            if at is not None and time.monotonic() >= at and here:
                with contextlib.suppress(psutil.NoSuchProcess):
                    here[draw.choice(sorted(here))].send_signal(signal.SIGKILL)
                    signals.append(time.monotonic())
                at = None
            time.sleep(0.01)
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
            process.wait(30)
    return read_outcome(folder / "run", signals, log.read_text(errors="replace"))


def read_outcome(folder: Path, signals: Sequence[float], words: str) -> Outcome:
    """What the traces of a run say about its kills."""
    run, trace = Run(folder), read(folder)

    def events(what: str, *roles: str) -> list[float]:
        # On the clock that all processes of a host share.
        return sorted(
            event.at - process.began + process.header.clock
            for process in trace.processes
            if not roles or process.header.role in roles
            for event in process.events
            if event.what == what
        )

    lost = events("lost", "agent")
    stepped = events("continued")
    back = events("returned")
    finished = run.status == "finished" and run.samples == SAMPLES
    return Outcome(
        len(signals),
        _until(lost, stepped),
        _until(lost, back),
        len(events("repeated")),
        finished,
        "" if finished else words[-2000:],
        _until(signals, stepped),
        _until(signals, back),
    )


def torchft_with_kills(seed: int, folder: Path) -> Outcome:
    """The same kills of workers of torchft, each of which is started again at once."""
    draw = random.Random(seed)  # noqa: S311 - the same workers every time
    command = [sys.executable, "-m", "benchmarks.elastic_torchft"]
    processes: list[subprocess.Popen[bytes]] = []
    lines: dict[int, list[Path]] = {rank: [] for rank in range(WORKERS)}
    environment = {**os.environ, "RUST_LOG": "error"}

    def start(name: str, *arguments: str) -> Path:
        path = folder / name
        with path.open("w") as out, (folder / f"{name}.err").open("w") as err:
            processes.append(
                subprocess.Popen([*command, *arguments], stdout=out, stderr=err, env=environment)
            )
        return path

    def steps(rank: int) -> list[list[float]]:
        texts = (path.read_text().splitlines() for path in lines[rank])
        parts = (line.split() for text in texts for line in text)
        return [[float(one) for one in part] for part in parts if len(part) == 3]

    def begin(rank: int, address: str) -> subprocess.Popen[bytes]:
        name = f"worker-{rank}.{len(lines[rank])}"
        lines[rank].append(start(name, str(rank), address))
        return processes[-1]

    try:
        served = start("lighthouse", "serve")
        _await(lambda: served.read_text().strip())
        address = served.read_text().split()[0]
        workers = {rank: begin(rank, address) for rank in range(WORKERS)}
        signals: list[float] = []

        def all_since(moment: float) -> bool:
            return all(
                any(at > moment and count == WORKERS for at, _, count in steps(rank)[-3:])
                for rank in range(WORKERS)
            )

        for pause in moments(seed):
            since = signals[-1] if signals else 0.0
            _await(lambda: all_since(since))  # noqa: B023 - called at once
            time.sleep(pause)
            victim = draw.randrange(WORKERS)
            workers[victim].kill()
            signals.append(time.monotonic())
            workers[victim].wait()
            workers[victim] = begin(victim, address)
        _await(lambda: all_since(signals[-1]))
        everyone = [one for rank in range(WORKERS) for one in steps(rank)]
        stepped = sorted(at for at, _, count in everyone if count < WORKERS)
        back = sorted(at for at, _, count in everyone if count == WORKERS)
        # Steps of all that were committed just after a signal were complete before it.
        again = tuple(
            min(at for at in back if at > max(one for one in stepped if one < follows)) - begun
            for begun, follows in zip(signals, [*signals[1:], float("inf")], strict=True)
            if any(begun < one < follows for one in stepped)
        )
        return Outcome(len(signals), (), (), 0, True, "", _until(signals, stepped), again)
    except TimeoutError:
        return Outcome(len(signals), (), (), 0, finished=False, words="torchft hangs")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _await(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + _LONGEST
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


def _until(begins: Sequence[float], ends: Sequence[float]) -> tuple[float, ...]:
    """From each beginning, the seconds to the first end before the next beginning."""
    found = []
    for at, begin in enumerate(begins):
        following = begins[at + 1] if at + 1 < len(begins) else float("inf")
        after = [end for end in ends if begin <= end < following]
        if after:
            found.append(after[0] - begin)
    return tuple(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="Store the figures as results.")
    options = parser.parse_args()
    ours: list[Outcome] = []
    theirs: list[Outcome] = []
    has_peer = importlib.util.find_spec("torchft") is not None
    seed = options.seed
    while sum(outcome.kills for outcome in ours) < options.kills:
        with tempfile.TemporaryDirectory() as folder:
            ours.append(run_with_kills(seed, Path(folder)))
        _show(f"seed {seed}", ours[-1])
        if has_peer:
            with tempfile.TemporaryDirectory() as folder:
                theirs.append(torchft_with_kills(seed, Path(folder)))
            _show(f"seed {seed}, torchft", theirs[-1])
        seed += 1
    figures: dict[str, object] = {
        "kills": sum(outcome.kills for outcome in ours),
        "runs": len(ours),
        "unfinished": sum(not outcome.finished for outcome in ours),
        "repeated_per_kill": max(
            (outcome.repeated / outcome.kills for outcome in ours if outcome.kills), default=0.0
        ),
        "stepped": _figures([one for each in ours for one in each.stepped], STEP_WITHIN),
        "back": _figures([one for each in ours for one in each.back], BACK_WITHIN),
        "stepped_from_signal": _figures([one for each in ours for one in each.from_signal]),
        "back_from_signal": _figures([one for each in ours for one in each.back_from_signal]),
        "torchft": {
            "kills": sum(outcome.kills for outcome in theirs),
            "unfinished": sum(not outcome.finished for outcome in theirs),
            "stepped_from_signal": _figures([one for each in theirs for one in each.from_signal]),
            "back_from_signal": _figures([one for each in theirs for one in each.back_from_signal]),
        }
        if has_peer
        else "not installed",
    }
    if options.keep:
        keep("elastic", figures)
    report("elastic", figures)


def _show(name: str, outcome: Outcome) -> None:
    def seconds(values: Sequence[float]) -> str:
        return ", ".join(f"{one:.2f}" for one in values) or "no"

    print(
        f"{name}: {outcome.kills} kills; stepping {seconds(outcome.from_signal)} s after a signal "
        f"({seconds(outcome.stepped)} s after detection), four again after "
        f"{seconds(outcome.back_from_signal)} s; {outcome.repeated} steps repeated"
        f"{'' if outcome.finished else f'; NOT FINISHED: {outcome.words}'}",
        flush=True,
    )


def _figures(values: Sequence[float], limit: float | None = None) -> dict[str, float]:
    if not values:
        return {"count": 0}
    found = {"count": len(values), "median": statistics.median(values), "worst": max(values)}
    if limit is not None:
        found["in_time"] = sum(one <= limit for one in values) / len(values)
    return found


if __name__ == "__main__":
    main()
