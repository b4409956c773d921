"""Seconds from the shell to the first step: ours, and DDP under torchrun.

Each side is started in turn, with two workers and a small model; the files that it loads are in the
page cache after the first round, which is not counted. A side has made its first step when its
first worker says so.

    python -m benchmarks.first_step --rounds 5
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.figures import report

JOB = Path(__file__).parent / "first_step_job.py"
SIDES = {
    "manyhands train": ("-m", "manyhands", "train", str(JOB)),
    "python train.py": (str(JOB),),
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(JOB)),
    "import torch": ("-c", "import os, time, torch; open(os.environ['FIRST'], 'w').close()"),
}


def seconds(side: str, folder: Path) -> float:
    """How long one start took until the first step."""
    first = folder / "first"
    first.unlink(missing_ok=True)
    output = Path(tempfile.mkdtemp(dir=folder)) / "run"
    options = {"manyhands train": ("--output", str(output))}.get(side, ())
    surroundings = {"FIRST": str(first), "OUTPUT": str(output), "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    process = subprocess.Popen(
        (sys.executable, *SIDES[side], *options),
        env={**os.environ, **surroundings, "SIDE": side},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not first.exists():
            if process.poll() is not None and not first.exists():
                raise RuntimeError(f"{side} ended with {process.returncode}, without a step")
            time.sleep(0.005)
        took = time.monotonic() - began
        process.wait(60)
        return took
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of all sides, one after the other")
    rounds = parser.parse_args().rounds
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds + 1):
            for side in SIDES:
                took = seconds(side, Path(folder))
                if turn:
                    found[side].append(took)
    print(f"seconds to the first step, two workers, {rounds} rounds: median (least to most)")
    for side, values in found.items():
        middle = statistics.median(values)
        print(f"  {side:16} {middle:5.2f}  ({min(values):.2f} to {max(values):.2f})")
    report("first_step", {"rounds": rounds, **found})


if __name__ == "__main__":
    main()
