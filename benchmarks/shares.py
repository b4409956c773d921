"""Equal shares and shares by speed under `allreduce` and `synchronous`, one of four workers slow.

Computing is paced: a worker sleeps 4 ms for each sample, the last one four times as long. So four
workers on two cores do not disturb each other. Speed is that after the first epoch, as a fraction
of the sum of the workers' speeds. With equal shares it cannot exceed 4·(1/4) / (3 + 1/4) = 0.308.

    python -m benchmarks.shares
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.figures import keep, report
from benchmarks.paced import run_to_end, steady_rate
from benchmarks.shares_job import PER_SAMPLE
from manyhands.reports import Run

LEAST = 0.95
"""The least fraction with shares by speed."""
WORKERS, SLOW = 4, 4
SPEED = (WORKERS - 1 + 1 / SLOW) / PER_SAMPLE
"""The sum of the workers' speeds, in samples per second."""
STRATEGIES = (
    "allreduce()",
    "allreduce(shares=by_speed)",
    "synchronous()",
    "synchronous(shares=by_speed)",
)
_JOB = Path(__file__).parent / "shares_job.py"


def measure(strategy: str, output: Path) -> float:
    """Speed of a run, as a fraction of the sum of speeds."""
    command = [sys.executable, "-m", "manyhands", "train", str(_JOB), "--strategy", strategy]
    command += ["--workers", str(WORKERS), "--slow", f"{WORKERS - 1}:{SLOW}x"]
    command += ["--output", str(output)]
    run_to_end(command, {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)})
    return steady_rate(Run(output)) / SPEED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="store the figures as results")
    given = parser.parse_args()
    found: dict[str, list[float]] = {strategy: [] for strategy in STRATEGIES}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.rounds):
            for strategy in STRATEGIES:
                output = Path(folder) / f"{number}-{STRATEGIES.index(strategy)}"
                found[strategy].append(measure(strategy, output))
    medians = {strategy: statistics.median(values) for strategy, values in found.items()}
    for strategy, values in found.items():
        spread = f"{min(values):.3f} to {max(values):.3f}"
        print(f"{strategy}: {medians[strategy]:.3f} of the sum of speeds ({spread})")
    figures: dict[str, object] = {"fractions": found}
    if given.keep:
        keep("shares", figures)
    report("shares", figures)
    by_speed = [median for strategy, median in medians.items() if "by_speed" in strategy]
    sys.exit(0 if min(by_speed) >= LEAST else 1)


if __name__ == "__main__":
    main()
