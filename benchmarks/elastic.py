"""Workers of `allreduce` that are killed at seeded moments: how soon the others step again.

Runs of four workers, in each of which one worker after the other is killed with SIGKILL: at its
start, in a step, in an evaluation, while the model is stored. Times are read from the traces: from
the moment at which the agent notices the death to the first step of the remaining workers, and to
the moment at which the successor is one of the group. A run must finish, with all its samples, and
repeat one step per kill at most.

    python -m benchmarks.elastic --kills 100
"""

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.figures import keep, report
from manyhands.reports import Run
from manyhands.trace import Event, read

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
    agent, begun, kills = psutil.Process(process.pid), time.monotonic(), 0
    due = [draw.uniform(0.0, 2.0), *(draw.uniform(0.5, 5.0) for _ in range(PER_RUN - 1))]
    at: float | None = None
    try:
        while process.poll() is None:
            if time.monotonic() - begun > _LONGEST:
                return Outcome(kills, (), (), 0, finished=False, words="the run hangs")
            here = workers_of(agent)
            if at is None and due and len(here) == WORKERS:
                at = time.monotonic() + due.pop(0)
            if at is not None and time.monotonic() >= at and here:
                with contextlib.suppress(psutil.NoSuchProcess):
                    here[draw.choice(sorted(here))].send_signal(signal.SIGKILL)
                    kills += 1
                at = None
            time.sleep(0.01)
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
            process.wait(30)
    return read_outcome(folder / "run", kills, log.read_text(errors="replace"))


def read_outcome(folder: Path, kills: int, words: str) -> Outcome:
    """What the traces of a run say about its kills."""
    run, trace = Run(folder), read(folder)

    def events(what: str, *roles: str) -> list[Event]:
        found = [
            event
            for process in trace.processes
            if not roles or process.header.role in roles
            for event in process.events
            if event.what == what
        ]
        return sorted(found, key=lambda event: event.at)

    lost = [event.at for event in events("lost", "agent")]
    stepped = [event.at for event in events("continued")]
    back = [event.at for event in events("returned")]
    finished = run.status == "finished" and run.samples == SAMPLES
    return Outcome(
        kills,
        _until(lost, stepped),
        _until(lost, back),
        len(events("repeated")),
        finished,
        "" if finished else words[-2000:],
    )


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
    outcomes: list[Outcome] = []
    seed = options.seed
    while sum(outcome.kills for outcome in outcomes) < options.kills:
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(run_with_kills(seed, Path(folder)))
        last = outcomes[-1]
        print(
            f"seed {seed}: {last.kills} kills, stepping after "
            f"{', '.join(f'{one:.2f}' for one in last.stepped)} s, four again after "
            f"{', '.join(f'{one:.2f}' for one in last.back)} s, {last.repeated} steps repeated"
            f"{'' if last.finished else f', NOT FINISHED: {last.words}'}"
        )
        seed += 1
    stepped = sorted(one for outcome in outcomes for one in outcome.stepped)
    back = sorted(one for outcome in outcomes for one in outcome.back)
    figures: dict[str, object] = {
        "kills": sum(outcome.kills for outcome in outcomes),
        "runs": len(outcomes),
        "unfinished": sum(not outcome.finished for outcome in outcomes),
        "stepped": len(stepped),
        "stepped_median": statistics.median(stepped),
        "stepped_worst": stepped[-1],
        "stepped_in_time": sum(one <= STEP_WITHIN for one in stepped) / len(stepped),
        "back": len(back),
        "back_median": statistics.median(back),
        "back_worst": back[-1],
        "back_in_time": sum(one <= BACK_WITHIN for one in back) / len(back),
        "repeated_per_kill": max(
            (outcome.repeated / outcome.kills for outcome in outcomes if outcome.kills), default=0.0
        ),
    }
    if options.keep:
        keep("elastic", figures)
    report("elastic", figures)


if __name__ == "__main__":
    main()
