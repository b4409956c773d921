"""Time to accuracy: what `plan` predicts, and what real runs need.

Two jobs, a small network on MNIST and a small GPT on Shakespeare, under five strategies on four
workers, each behind a link of its own (network namespaces of this machine; needs root, or
unprivileged user namespaces). `plan` trains virtually with real gradients, three seeds, by times
that `calibrate` measured on one worker; `compare --cluster` then trains with real processes, with
the same three seeds, until the target is measured. Computing is paced: a worker sleeps for as long
as its part of a batch takes, beside the gradient that it really computes.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import nn

import manyhands as mh
from benchmarks.figures import keep, kept, report
from benchmarks.predictions import command, crowding
from manyhands.lab.calibration import read_calibration
from manyhands.reports import read_results

_SCRIPT = Path(__file__).parent / "time_to_target_job.py"
STRATEGIES = (
    "allreduce()",
    "synchronous()",
    "asynchronous()",
    "local_sgd(every=8)",
    "gossip()",
)
WORKERS = 4
NEAR = 0.15
"""How far a prediction may be from what is measured, relatively, if it is not within the spread."""


@dataclass(frozen=True)
class Task:
    """A job, what it has to reach, and where."""

    name: str
    target: str
    network: str
    step: float
    """Seconds of a batch without samples."""
    sample: float
    """Seconds of a sample."""


TASKS = (
    Task("mnist", "accuracy >= 0.9", "100mbit", step=0.01, sample=0.0015),
    # Longer: what it really computes, by four workers on few cores, must be a small part of a step.
    Task("gpt", "loss <= 2.6", "100mbit", step=0.03, sample=0.012),
)


def job(task: Task, *, paced: bool) -> mh.Job:
    """The job of a task; a paced one sleeps when its loss is computed for a gradient."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if paced and torch.is_grad_enabled():
            time.sleep(task.step + task.sample * len(targets))
        return nn.functional.cross_entropy(outputs, targets)

    made = _mnist() if task.name == "mnist" else _gpt()
    return replace(made, loss=loss)


def _mnist() -> mh.Job:
    train, test = mh.data.mnist("train"), mh.data.mnist("test")
    return mh.Job(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10)),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
        loss=nn.functional.cross_entropy,
        data=torch.utils.data.Subset(train, range(8_000)),
        validation=torch.utils.data.Subset(test, range(1_000)),
        global_batch=64,
        epochs=6,
        evaluate_every=mh.every(epochs=0.1),
    )


def _gpt() -> mh.Job:
    train = mh.data.tinyshakespeare("train", length=32)
    test = mh.data.tinyshakespeare("test", length=32)
    return mh.Job(
        model=lambda: mh.models.GPT(vocabulary=65, length=32, width=32, layers=2, heads=2),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=5e-3),
        loss=nn.functional.cross_entropy,
        data=torch.utils.data.Subset(train, range(8_000)),
        validation=torch.utils.data.Subset(test, range(256)),
        global_batch=32,
        epochs=3,
        metrics=(),
        evaluate_every=mh.every(epochs=0.05),
    )


@dataclass(frozen=True)
class Case:
    """A strategy on a task, in seconds to the target."""

    strategy: str
    predicted: tuple[float, ...]
    """The mean over the seeds, and the least and the most."""
    measured: tuple[float, ...]
    """A number for each seed."""

    @property
    def error(self) -> float:
        """Predicted / measured - 1, of the means."""
        return self.predicted[0] / statistics.mean(self.measured) - 1

    @property
    def is_near(self) -> bool:
        """Whether the mean is near, or within the spread of the seeds."""
        within = min(self.measured) <= self.predicted[0] <= max(self.measured)
        return within or abs(self.error) <= NEAR


def predict(task: Task, folder: Path) -> dict[str, mh.TimeToTarget]:
    """What a plan says, by strategy."""
    stored = folder / f"{task.name}.json"
    command("calibrate", str(_SCRIPT), "--output", str(stored), about=task)
    planned = mh.plan(
        job(task, paced=False),
        _cluster(task),
        crowding(read_calibration(stored), WORKERS),
        strategies=STRATEGIES,
        workers=[WORKERS],
        target=task.target,
        budget=3600.0,
    )
    for words in (*planned.left_out, *planned.notes):
        print(words)
    return {one.strategy: one.to_target for one in planned.ranking if one.to_target is not None}


def measure(task: Task, folder: Path, strategies: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """What real runs need, by strategy."""
    target = folder / f"{task.name}-live"
    command(
        *("compare", str(_SCRIPT), "--strategies", ", ".join(strategies), "--repeats", "3"),
        *("--cluster", _cluster(task), "--target", task.target, "--output", str(target)),
        about=task,
    )
    found: dict[str, list[float]] = {}
    for run in read_results(target).runs:
        if run.time_to_target is None:
            print(f"{run.strategy}: {task.target} was not reached: {run.status}")
        else:
            found.setdefault(str(mh.strategy(run.strategy)), []).append(run.time_to_target)
    return {name: tuple(times) for name, times in found.items()}


def _cluster(task: Task) -> str:
    return f"{WORKERS} hosts of 1 worker, {task.network}"


def compared(
    predicted: Mapping[str, mh.TimeToTarget], measured: Mapping[str, tuple[float, ...]]
) -> list[Case]:
    """The strategies of which both are known."""
    return [
        Case(name, (one.seconds, one.low, one.high), measured[name])
        for name, one in predicted.items()
        if name in measured
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="the task of this name")
    parser.add_argument("--predict", action="store_true", help="only what is predicted")
    parser.add_argument("--keep", action="store_true", help="store the figures as results")
    given = parser.parse_args()
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as name:
        for task in TASKS:
            if given.only not in task.name:
                continue
            predicted = predict(task, Path(name))
            if given.predict:
                print(task.name, predicted)
                continue
            cases = compared(predicted, measure(task, Path(name), STRATEGIES))
            for case in cases:
                low, high = case.predicted[1:]
                print(
                    f"{task.name} {case.strategy:20} predicted {case.predicted[0]:6.1f} s "
                    f"({low:.1f} to {high:.1f}), measured {statistics.mean(case.measured):6.1f} s "
                    f"({min(case.measured):.1f} to {max(case.measured):.1f}), "
                    f"{100 * case.error:+.1f} %{'' if case.is_near else ', not near'}",
                    flush=True,
                )
            figures[task.name] = {
                "near": sum(case.is_near for case in cases),
                "cases": [asdict(case) for case in cases],
            }
    if given.keep:
        keep("time_to_target", {**kept("time_to_target")["figures"], **figures})
    report("time_to_target", figures)


if __name__ == "__main__":
    main()
