"""The least that a training step costs: `single()` with a model of one number, a sample at a time.

Loading, forward, backward and the optimizer's step have next to nothing to compute, so what remains
is what each step costs whatever the model. `plan --assume`, which counts operations alone, adds it
to every batch. The figure is the least, over runs, of the median step:
what else the machine does makes a step longer, never shorter.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.figures import keep, report
from benchmarks.paced import run_to_end
from manyhands.lab.calibration.timed_run import timed
from manyhands.reports import Run

_ROOT = Path(__file__).parent.parent
_SCRIPT = Path(__file__).with_name("step_floor_job.py")


def measure(runs: int, seconds: float) -> list[float]:
    """Seconds of a step, run by run."""
    found = []
    with tempfile.TemporaryDirectory() as place:
        for number in range(runs):
            folder = Path(place) / str(number)
            words = [sys.executable, "-m", "manyhands", "train", str(_SCRIPT)]
            words += ["--strategy", "single()", "--seconds", f"{seconds:g}", "--quiet"]
            words += ["--output", str(folder)]
            run_to_end(words, {"PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"})
            found.append(timed(Run(folder)).step)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of each run")
    parser.add_argument("--keep", action="store_true", help="store the figures in results/")
    given = parser.parse_args()
    found = measure(given.runs, given.seconds)
    figures: dict[str, object] = {"seconds": min(found), "runs": found}
    print(f"{1e3 * min(found):.3f} ms a step ({os.cpu_count()} cores), runs: {found}")
    if given.keep:
        keep("step_floor", figures)
    report("step_floor", figures)


if __name__ == "__main__":
    main()
