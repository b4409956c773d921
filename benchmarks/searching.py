"""Searches against random search, with the same number of samples trained.

    python -m benchmarks.searching                 ten seeds of each method on its example
    python -m benchmarks.searching --schedule      what population-based training finds for a GPT
    python -m benchmarks.searching --bookkeeping   what a trial costs beside its training

Trials are on the virtual clock with one worker each, whose numbers are those of live ones; two are
made at the same time. A method is better in a seed if its best trial, of those that were trained to
the end, is better than the median over the seeds of the best of random search.
"""

import argparse
import importlib
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import manyhands as mh
from benchmarks.figures import RESULTS, keep, report
from manyhands.lab.search.page import against_constant


@dataclass(frozen=True)
class Case:
    """A method on its example."""

    method: str
    trials: int
    example: str
    drawn: int
    """Trials of random search, which train as many samples."""


CASES = (
    Case("population(size=8)", 24, "search", 8),
    Case("evolution(size=8)", 32, "search_structure", 32),
    Case("swarm(size=8)", 32, "search_rates", 32),
)


def best(job: Any, method: str, trials: int, seed: int, folder: Path, **options: Any) -> float:
    """The score of a search's winner."""
    found = mh.search(
        job,
        method,
        trials=trials,
        workers=2,
        seed=seed,
        virtual=True,
        output=folder / f"{method}-{seed}",
        **options,
    )
    return float("nan") if found.best is None else float(found.best.score or 0.0)


def against_chance(case: Case, seeds: Sequence[int], folder: Path) -> dict[str, Any]:
    """Both methods under every seed, one after the other."""
    job = importlib.import_module(f"examples.{case.example}").job
    ours, chance = [], []
    for seed in seeds:
        where = folder / case.example
        ours.append(best(job, case.method, case.trials, seed, where))
        chance.append(best(job, "random()", case.drawn, seed, where))
        print(f"{case.method:20} seed {seed}: {ours[-1]:.4f}, random {chance[-1]:.4f}", flush=True)
    median = statistics.median(chance)
    return {
        "method": case.method,
        "example": f"examples/{case.example}.py",
        "trials": case.trials,
        "random trials": case.drawn,
        "scores": ours,
        "random scores": chance,
        "median of random": median,
        "better than the median of random": sum(one > median for one in ours),
        "better than random of the same seed": sum(
            one > other for one, other in zip(ours, chance, strict=True)
        ),
    }


def with_others(figures: dict[str, Any]) -> dict[str, Any]:
    """The figures, and the stored ones of methods that were not measured now."""
    path = RESULTS / "searching.json"
    if not path.exists():
        return figures
    measured = {one["method"] for one in figures["cases"]}
    before = json.loads(path.read_text(encoding="utf-8"))["figures"]["cases"]
    others = [one for one in before if one["method"] not in measured]
    return {"cases": [*others, *figures["cases"]]}


def schedules(seeds: Sequence[int], folder: Path) -> list[dict[str, Any]]:
    """The schedules that population-based training finds for a GPT."""
    job = importlib.import_module("examples.search_gpt").job
    found = []
    for seed in seeds:
        one = mh.search(
            job,
            "population(size=6)",
            trials=36,
            workers=2,
            seed=seed,
            metric="loss",
            virtual=True,
            output=folder / f"gpt-{seed}",
        )
        winner = one.best
        found.append(
            {
                "seed": seed,
                "loss": None if winner is None else winner.score,
                "schedule": [step.values for step in one.schedule],
                "words": against_constant(one),
            }
        )
        print(f"seed {seed}: loss {found[-1]['loss']:.4f}. {found[-1]['words']}", flush=True)
    return found


_points = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
_data = torch.utils.data.TensorDataset(_points, (_points[:, 0] > 0).long())


def tiny(lr: Any = mh.free.log(1e-3, 1.0)) -> mh.Job:
    """A job that takes almost no time."""
    return mh.Job(
        model=lambda: nn.Linear(2, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=lr),
        loss=nn.functional.cross_entropy,
        data=_data,
        validation=_data,
        global_batch=32,
        samples=64,
    )


def bookkeeping(trials: int, method: str, folder: Path) -> dict[str, Any]:
    """Seconds per trial of many tiny ones, and of the same runs made by a loop without a search."""
    begun = time.monotonic()
    found = mh.search(
        tiny, method, trials=trials, workers=2, virtual=True, output=folder / f"many-{method}"
    )
    whole = (time.monotonic() - begun) / trials
    begun, count = time.monotonic(), min(100, trials)
    for number in range(count):
        mh.simulate(tiny, "single()", workers=1, output=folder / f"alone-{method}" / str(number))
    alone = (time.monotonic() - begun) / count
    begun = time.monotonic()
    mh.search(
        tiny, method, trials=trials, workers=2, virtual=True, output=folder / f"many-{method}"
    )
    again = (time.monotonic() - begun) / trials
    return {
        "method": method,
        "trials": len(found.results),
        "seconds per trial, two at the same time": whole,
        "seconds per run without a search": alone,
        "seconds per trial of reading and proposing all of them again": again,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--method", default="", help="only cases whose method begins so")
    parser.add_argument("--trials", type=int, default=1000, help="of the bookkeeping")
    parser.add_argument("--schedule", action="store_true")
    parser.add_argument("--bookkeeping", action="store_true")
    parser.add_argument("--keep", action="store_true", help="store the figures")
    arguments = parser.parse_args()
    figures: dict[str, object]
    with tempfile.TemporaryDirectory() as folder:
        here, seeds = Path(folder), range(arguments.seeds)
        if arguments.schedule:
            name = "searching_schedules"
            figures = {"schedules": schedules(range(min(3, arguments.seeds)), here)}
        elif arguments.bookkeeping:
            name, methods = "searching_bookkeeping", ("random()", "evolution()")
            figures = {"each": [bookkeeping(arguments.trials, one, here) for one in methods]}
        else:
            name = "searching"
            chosen = [case for case in CASES if case.method.startswith(arguments.method)]
            figures = {"cases": [against_chance(case, seeds, here) for case in chosen]}
    report(name, figures)
    if arguments.keep:
        keep(name, with_others(figures) if name == "searching" else figures)


if __name__ == "__main__":
    main()
