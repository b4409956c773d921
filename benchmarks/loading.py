"""Samples per second where loading is the limit: protocols against lockstep.

Two workers with two loading processes each. A sample takes 4 ms to load, in which the process
sleeps, as it would for a disk or a store on the network; so all four load at once even on two cores
(paced). The model is small. At best, 4 processes load 1,000 samples per second. Strategies are run
one after the other, in rounds; a figure is the median of the rates between the first epoch and the
last, with the lowest and the highest.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks.figures import keep, report
from benchmarks.paced import Launch, run_to_end, steady_rate
from manyhands.reports import Run

LOCKSTEP = "allreduce()"
STRATEGIES = (LOCKSTEP, "synchronous()", "asynchronous()", "diloco(every=8)", "gossip()")
SECONDS = 0.004
"""Of loading a sample."""
LOADERS = 2
WORKERS = 2
BATCH = 32
EPOCH = 1600
"""Samples."""
EPOCHS = 6
LEAST = 0.95
"""The share of lockstep's rate that every other strategy must reach."""
_ROOT = Path(__file__).parent.parent
_SCRIPT = Path(__file__).parent / "loading_job.py"


def rate(strategy: str, folder: Path, launch: Launch = run_to_end) -> float:
    """Samples per second of one run."""
    search = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    launch(
        [
            *(sys.executable, "-m", "manyhands", "train", str(_SCRIPT), "--strategy", strategy),
            *("--workers", str(WORKERS), "--output", str(folder)),
        ],
        {"PYTHONPATH": os.pathsep.join(search), "OMP_NUM_THREADS": "1"},
    )
    return steady_rate(Run(folder))


def measure(
    strategies: Iterable[str], rounds: int, launch: Launch = run_to_end
) -> dict[str, list[float]]:
    """The rates of all strategies, a number for each round."""
    found: dict[str, list[float]] = {text: [] for text in strategies}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for place, (text, rates) in enumerate(found.items()):
                rates.append(rate(text, Path(folder) / f"{number}-{place}", launch))
    return found


def row(text: str, rates: list[float], lockstep: float) -> str:
    """For the table."""
    middle = statistics.median(rates)
    return (
        f"| `{text}` | {middle:.0f} ({min(rates):.0f} to {max(rates):.0f}) | "
        f"{middle / lockstep:.3f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="store the figures as results")
    given = parser.parse_args()
    found = measure(STRATEGIES, given.rounds)
    lockstep = statistics.median(found[LOCKSTEP])
    print("| strategy | samples/s | of lockstep |\n| --- | --- | --- |")
    for text, rates in found.items():
        print(row(text, rates, lockstep))
    kept: dict[str, object] = dict(found)
    if given.keep:
        keep("loading", kept)
    report("loading", kept)


if __name__ == "__main__":
    main()
