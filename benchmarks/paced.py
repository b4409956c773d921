"""Paced training: a worker sleeps for as long as its computing takes; all else is real.

Processes that sleep leave the cores to the others, so what is seen is the waiting that a strategy
has by its nature and what the product costs, even where there are fewer cores than workers: that is
what the virtual cluster is checked against (`docs/decisions/0028-paced-runs.md`). One sample makes
an update, and the model is small.
"""

import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

import manyhands as mh
from benchmarks.server_sides import session
from manyhands.reports import Run, epochs
from manyhands.strategies import strategy as read_strategy
from manyhands.trace import ProcessTrace

_ROOT = Path(__file__).parent.parent
_SCRIPT = Path(__file__).parent / "paced_job.py"

Launch = Callable[[list[str], Mapping[str, str]], None]
"""Runs a command, with additions to the environment, to its end; raises if it fails."""


@dataclass(frozen=True)
class Pace:
    """How long the workers of a run take for a batch, and how many updates they make."""

    seconds: float
    """Of the mean batch."""
    slow: float
    """How many times as long the last worker takes."""
    cv: float = 0.0
    """Standard deviation / mean; times are log-normal, or all the same with 0."""
    workers: int = 4
    epoch: int = 400
    """Updates in an epoch. Speed is measured without the first epoch and the last."""
    epochs: int = 10

    @property
    def updates(self) -> int:
        """Of all workers together."""
        return self.epoch * self.epochs

    @property
    def speed(self) -> float:
        """The sum of the workers' speeds: updates per second if they did nothing but compute."""
        return (self.workers - 1 + 1 / self.slow) / self.seconds

    @property
    def times(self) -> str:
        """The same for virtual workers."""
        slow = f"slow=[slow(rank={self.workers - 1}, factor={self.slow!r})]"
        if not self.cv:
            return f"constant({self.seconds!r}, {slow})"
        return f"lognormal({self.seconds!r}, cv={self.cv!r}, {slow})"

    def drawer(self, rank: int) -> Callable[[], float]:
        """What gives a worker's times, one after the other."""
        mean = self.seconds * (self.slow if rank == self.workers - 1 else 1.0)
        variance = math.log1p(self.cv**2)
        middle, sigma = math.log(mean) - variance / 2, math.sqrt(variance)
        draw = random.Random(rank)  # noqa: S311 - times, not secrets
        return lambda: draw.lognormvariate(middle, sigma)


def job(pace: Pace, loss: Callable[..., torch.Tensor] = nn.functional.mse_loss) -> mh.Job:
    """A small regression."""
    inputs = torch.randn(pace.epoch, 8, generator=torch.Generator().manual_seed(7))
    return mh.Job(
        model=lambda: nn.Linear(8, 4),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.001),
        loss=loss,
        data=torch.utils.data.TensorDataset(inputs, inputs[:, :4].clone()),
        global_batch=pace.workers,
        samples=pace.updates,
        metrics=(),
    )


def run_to_end(command: list[str], environment: Mapping[str, str]) -> None:
    """Run a command; whatever happens to it or to us, no process of it is left."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with session(process):
        said, _ = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{said}")


def train(strategy: str, pace: Pace, folder: Path, launch: Launch = run_to_end) -> Run:
    """Train for real, into a new folder."""
    search = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    launch(
        [
            *(sys.executable, "-m", "manyhands", "train", str(_SCRIPT)),
            *("--strategy", strategy, "--workers", str(pace.workers), "--output", str(folder)),
            *("--", json.dumps(asdict(pace))),
        ],
        {"PYTHONPATH": os.pathsep.join(search), "OMP_NUM_THREADS": "1"},
    )
    return Run(folder)


@dataclass(frozen=True)
class Conditions:
    """What a virtual run is given beside its job."""

    times: str
    way: float = 0.0
    """Seconds that a message is under way."""
    service: float = 0.0
    """Seconds that a server takes for an update."""


def measured(run: Run) -> Conditions:
    """The conditions that a real run was under: every worker's own times, and mean ways."""
    service = [
        span.seconds
        for process in run.trace.processes
        if process.header.role == "server"
        for span in process.spans
        if span.kind == "compute"
    ]
    exchanges = [seconds for worker in run.trace.workers for seconds in _exchanges(worker)]
    return Conditions(
        times=f'measured("{run.folder}")',
        way=statistics.mean(exchanges) / 2 if exchanges else 0.0,
        service=statistics.mean(service) if service else 0.0,
    )


def _exchanges(worker: ProcessTrace) -> Iterator[float]:
    """What a worker's exchanges took, from asking to the next thing that it did, less any wait.

    Several that are asked at once answer in one exchange. One whose answer came while the worker
    computed has cost nothing, and is left out.
    """
    asked: float | None = None
    answered = False
    computed = overlapped = waited = 0.0
    for span in sorted(worker.spans, key=lambda span: span.start):
        if asked is not None and answered and span.kind not in ("receive", "wait"):
            seconds = span.start - asked - waited
            if seconds > overlapped:
                yield seconds
            asked, answered = None, False
        match span.kind:
            case "send" if asked is None:
                # What is sent while computing counts from the end of that.
                asked, overlapped, waited = max(span.start, computed), 0.0, 0.0
            case "compute":
                computed = span.start + span.seconds
                if asked is not None:
                    asked, overlapped = computed, overlapped + span.seconds
            case "receive":
                answered = True
            case "wait":
                waited += span.seconds


def simulate(strategy: str, pace: Pace, conditions: Conditions, folder: Path, seed: int = 0) -> Run:
    """The same run on a virtual cluster, with a host for everybody unless they share memory."""
    protocol = read_strategy(strategy)
    needs = protocol.needs(pace.workers)
    if needs.shared_memory:
        # Those who sleep hold no core, so a server need not wait for one.
        where = {"cores": pace.workers + needs.servers, "handover": conditions.way}
    else:
        where = {"bandwidth": 2e9, "latency": conditions.way}
    return mh.simulate(
        job(pace),
        protocol,
        workers=pace.workers,
        times=conditions.times,
        service=conditions.service,
        seed=seed,
        output=folder,
        **where,
    )


def steady_rate(run: Run) -> float:
    """Updates per second of all workers, after the first epoch and before the last."""
    inner = epochs(run.trace)[1:-1]
    if not inner:
        raise ValueError(f"{run.folder} has fewer than three epochs: there is no steady state")
    return sum(epoch.samples for epoch in inner) / sum(epoch.seconds for epoch in inner)
