"""What checkpoints cost: a run with one every 10 steps, against one without, in turns.

A model of 10 M parameters and SGD with momentum, 80 MB of state, under `allreduce` on two workers.
Speed is that between the first epoch and the last. Runs with and without checkpoints alternate
(ABBA), and the ratio of speeds is given with its spread. The stall is the time for which a step was
held up, which is compared with a copy of the same bytes in memory.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.figures import keep, report
from benchmarks.paced import run_to_end, steady_rate
from manyhands.reports import Run

BOUND = 0.97
"""The least ratio of speeds."""
_JOB = Path(__file__).parent / "checkpoints_job.py"


def measure(folder: Path, every: str | None, workers: int) -> tuple[float, list[float]]:
    """Samples per second of a run, and the stall of each checkpoint."""
    output = folder / f"run-{len(list(folder.iterdir()))}"
    command = [sys.executable, "-m", "manyhands", "train", str(_JOB), "--workers", str(workers)]
    command += ["--strategy", "allreduce()", "--output", str(output)]
    command += [] if every is None else ["--checkpoint", every]
    run_to_end(command, {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)})
    run = Run(output)
    stalls = [
        float(event.detail["seconds"])
        for process in run.trace.processes
        for event in process.events
        if event.what == "checkpoint"
    ]
    return steady_rate(run), stalls


def copying(nbytes: int) -> float:
    """Seconds in which so many bytes are copied in memory."""
    source, target = (torch.zeros(nbytes // 4) for _ in range(2))
    found = []
    for _ in range(5):
        begun = time.perf_counter()
        target.copy_(source)
        found.append(time.perf_counter() - begun)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=3, help="each of four runs")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--every", default="10 steps")
    parser.add_argument("--keep", action="store_true", help="store the figures as results")
    given = parser.parse_args()
    ratios: list[float] = []
    stalls: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(given.blocks):
            rates: dict[str | None, list[float]] = {None: [], given.every: []}
            for every in (None, given.every, given.every, None):
                rate, stalled = measure(Path(folder), every, given.workers)
                rates[every].append(rate)
                stalls += stalled
            ratios.append(statistics.mean(rates[given.every]) / statistics.mean(rates[None]))
            print(f"with / without: {ratios[-1]:.3f}", flush=True)
    parameters = 10_020_874
    copy = copying(8 * parameters // given.workers)
    figures: dict[str, object] = {
        "ratio": [min(ratios), statistics.median(ratios), max(ratios)],
        "stall": [min(stalls), statistics.median(stalls), max(stalls)],
        "copy": copy,
        "checkpoints": len(stalls),
    }
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    print(f"speed with checkpoints / without: {middle:.3f} ({low:.3f} to {high:.3f})")
    print(
        f"stall {1e3 * statistics.median(stalls):.1f} ms, a copy of its bytes {1e3 * copy:.1f} ms"
    )
    if given.keep:
        keep("checkpoints", figures)
    report("checkpoints", figures)
    sys.exit(0 if middle >= BOUND else 1)


if __name__ == "__main__":
    main()
