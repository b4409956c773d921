"""What damping is worth where staleness hurts: MNIST at a rate that asynchronous SGD cannot stand.

The job of `examples/study.py` at its learning rate of 0.1 with momentum 0.9, under `asynchronous`
with and without damping: virtually with 4 and 16 workers, and with `--live` on 4 real ones, from
three seeds each. Reported are the accuracy after every epoch, and the global batches that passed
until it was 95 %, measured after every epoch. Virtual runs are repeatable: the load of the machine
changes nothing. Runs that were made are stored, and not made again.
"""

import argparse
import itertools
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh
from benchmarks.figures import RESULTS, keep, kept, report
from benchmarks.paced import run_to_end

RATE, MOMENTUM, BATCH, EPOCHS = 0.1, 0.9, 512, 4
SEEDS = (0, 1, 2)
KINDS = ("none", "inverse", "root")
TARGET = 0.95
PAGE = Path(__file__).parent.parent / "docs" / "studies" / "stragglers.md"
HEADING = (
    "| workers | damping | accuracy after each epoch, mean of three seeds | lowest to highest "
    "| epochs to 95 % |\n| --- | --- | --- | --- | --- |"
)

job = mh.Job(
    model=lambda: mh.models.MLP(hidden=(64,)),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM),
    loss=F.cross_entropy,
    data=mh.data.mnist("train"),
    validation=mh.data.mnist("test"),
    global_batch=BATCH,
    epochs=EPOCHS,
)


def measure(kind: str, workers: int, seed: int, *, live: bool = False) -> list[float]:
    """The accuracies of one run, after every epoch."""
    strategy = f"asynchronous(damping={kind})"
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        if live:
            root = str(Path(__file__).parent.parent)
            search = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
            run_to_end(
                [
                    *(sys.executable, "-m", "manyhands", "train", __file__, "--job", "job"),
                    *("--strategy", strategy, "--workers", str(workers), "--seed", str(seed)),
                    *("--output", str(output)),
                ],
                {"PYTHONPATH": os.pathsep.join(search), "OMP_NUM_THREADS": "1"},
            )
            run = mh.Run(output)
        else:
            mean = 0.05 + 0.005 * BATCH / workers
            times = f"lognormal({mean:.6g}, cv=0.7)"
            where = {"bandwidth": "10gbit", "latency": "50us"}
            run = mh.simulate(
                job, strategy, workers=workers, times=times, seed=seed, output=output, **where
            )
        points = [point for process in run.trace.processes for point in process.points]
        return [round(one.value, 4) for one in points if one.name == "validation/accuracy"]


def table(figures: dict[str, Any]) -> str:
    """The accuracies as the documentation shows them."""
    rows = [HEADING]
    groups = itertools.groupby(
        sorted(figures.items(), key=_order), key=lambda item: _order(item)[:3]
    )
    for (live, workers, kind), some in groups:
        runs = [accuracies for _, accuracies in some]
        means = [statistics.mean(each) for each in zip(*runs, strict=True)]
        ends = sorted(accuracies[-1] for accuracies in runs)
        reached = [_reached(accuracies) for accuracies in runs]
        rows.append(
            f"| {workers}{', live' if live else ''} | {KINDS[kind]} "
            f"| {', '.join(f'{100 * mean:.1f} %' for mean in means)} "
            f"| {100 * ends[0]:.1f} % to {100 * ends[-1]:.1f} % | {', '.join(reached)} |"
        )
    return "\n".join(rows)


def _order(item: tuple[str, Any]) -> tuple[bool, int, int, int]:
    where, workers, kind, seed = item[0].split(", ")
    return where == "live", int(workers), KINDS.index(kind), int(seed)


def _reached(accuracies: list[float]) -> str:
    return next((str(at + 1) for at, one in enumerate(accuracies) if one >= TARGET), "not")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--live", action="store_true", help="four real workers")
    parser.add_argument("--quick", action="store_true", help="one seed; nothing is stored")
    given = parser.parse_args()
    figures: dict[str, Any] = {}
    if (RESULTS / "damping.json").exists() and not given.quick:
        figures = kept("damping")["figures"]
    sizes = (4,) if given.live else (4, 16)
    where = "live" if given.live else "virtual"
    for workers, seed, kind in itertools.product(sizes, SEEDS[: 1 if given.quick else None], KINDS):
        name = f"{where}, {workers}, {kind}, {seed}"
        if name in figures:
            continue
        figures[name] = measure(kind, workers, seed, live=given.live)
        print(name, figures[name], flush=True)
        if not given.quick:
            keep("damping", figures)
    if not given.quick:
        before, begin, rest = PAGE.read_text(encoding="utf-8").partition("<!-- damping -->\n")
        _, end, after = rest.partition("<!-- end of damping -->\n")
        PAGE.write_text(f"{before}{begin}{table(figures)}\n{end}{after}", encoding="utf-8")
    report("damping", figures)


if __name__ == "__main__":
    main()
