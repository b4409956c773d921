"""Speed and memory of `simulate` with numbers: an MLP on MNIST, 1,000 and 10,000 workers.

Each run is in a process of its own: gradients that are pending at one moment are evaluated together
(the default), or one by one. Updates per second are those of the whole call of `simulate`, in wall
time and in processor time. The final parameters of both runs are compared.

    python -m benchmarks.virtual_speed
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh
from benchmarks.figures import keep, report
from manyhands.virtual.worker import shared_model

BATCH = 6
"""Samples of an update."""
STRATEGIES = ("asynchronous()", "synchronous()")
SIZES = {1000: 20_000, 10_000: 40_000}
"""By number of workers, the updates."""
WAYS = ("together", "one by one")


def a_job(workers: int, updates: int) -> mh.Job:
    return mh.Job(
        model=lambda: mh.models.MLP(784, (32,), 10),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.5),
        loss=F.cross_entropy,
        data=mh.data.mnist("train"),
        metrics=(),
        global_batch=workers * BATCH,
        samples=updates * BATCH,
    )


def simulate(strategy: str, workers: int, updates: int, way: str) -> dict[str, object]:
    """One run in this process."""
    if way == "one by one":
        shared_model.LEAST_WORKERS = sys.maxsize
    job = a_job(workers, updates)
    job.make_ready()
    with tempfile.TemporaryDirectory() as folder:
        begun, busy = time.monotonic(), time.process_time()
        run = mh.simulate(job, strategy, workers=workers, output=Path(folder) / "run")
        took, busy = time.monotonic() - begun, time.process_time() - busy
        state = {name: value.tolist() for name, value in run.state_dict().items()}
        assert run.samples == updates * BATCH
    return {
        "per second": updates / took,
        "per second of the processor": updates / busy,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "virtual seconds": run.seconds,
        "state": state,
    }


def in_process(*given: object) -> dict[str, object]:
    """One run in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.virtual_speed", "--one", *map(str, given)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def difference(one: dict[str, list[float]], other: dict[str, list[float]]) -> float:
    """The largest difference between two models, as a fraction of the largest parameter."""
    pairs = [(torch.tensor(one[name]), torch.tensor(other[name])) for name in one]
    largest = max(float(mine.abs().max()) for mine, _ in pairs)
    return max(float((mine - its).abs().max()) for mine, its in pairs) / largest


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--updates", type=int, help="instead of 20,000 and 40,000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--keep", action="store_true", help="store the figures as results")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one:
        strategy, workers, updates, way = given.one
        print(json.dumps(simulate(strategy, int(workers), int(updates), way)))
        return
    figures: dict[str, object] = {}
    for workers in given.workers:
        updates = given.updates or SIZES.get(workers, 2 * workers)
        for strategy in given.strategies:
            found: dict[str, list[dict[str, object]]] = {way: [] for way in WAYS}
            for _ in range(given.rounds):
                for way in WAYS:
                    found[way].append(in_process(strategy, workers, updates, way))
            states = [found[way][0].pop("state") for way in WAYS]
            for way in WAYS:
                for run in found[way][1:]:
                    run.pop("state")
                rate = statistics.median(float(str(run["per second"])) for run in found[way])
                most = max(float(str(run["megabytes"])) for run in found[way])
                print(
                    f"{strategy}, {workers:,} workers, {updates:,} updates, {way}: {rate:,.0f} "
                    f"updates/s, at most {most:,.0f} MB",
                    flush=True,
                )
            apart = difference(*states)  # type: ignore[arg-type]  # from JSON
            print(f"  largest difference of the parameters: {apart:.1e}", flush=True)
            figures[f"{strategy} {workers}"] = {"runs": found, "difference": apart}
    if given.keep:
        keep("virtual_speed", figures)
    report("virtual_speed", figures)


if __name__ == "__main__":
    main(sys.argv[1:])
