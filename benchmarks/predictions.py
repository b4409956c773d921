"""How far predictions are from real runs: eleven situations, five or six strategies in each.

In every situation `plan` predicts the speed of all strategies from a calibration of the job on one
worker, and `compare --cluster` then runs them with real processes, in network namespaces of this
machine. Computing is paced: a worker sleeps for as long as its part of a batch takes, so that eight
workers fit on two cores; messages, collectives, links and what the product costs are real. The
calibration has seen neither the strategies (but for one exchange with a server and two collectives
on one host), nor the numbers of workers, nor the links. All hosts of this benchmark share the cores
of one machine, which hosts of a cluster do not: what exchanges and collectives cost is multiplied
by the workers for each core.

That factor is rough where all processes encrypt and add up at the same moment. So situations about
servers are there a second time, `DILATED` times as slow: links have that part of their bandwidth,
and computing takes so many times as long, which is the same cluster with hosts whose processors are
so many times as fast (time dilation: Gupta et al., "To infinity and beyond", NSDI 2006). Only these
are part of the summary.

Reported for each situation: predicted / measured speed, Kendall's tau between the two orders (over
pairs that differ by more than the plan's margin in both), the regret: how much slower than the
fastest the plan's choice really is, and how far apart those really are that the plan cannot tell
apart.
"""

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

import manyhands as mh
from benchmarks.figures import keep, kept, report
from benchmarks.paced import run_to_end
from manyhands.lab.calibration import read_calibration
from manyhands.lab.planning.planned import MARGIN
from manyhands.models.paced import late
from manyhands.reports import Run, read_results
from manyhands.reports.figures.speed import throughput

_ROOT = Path(__file__).parent.parent
_SCRIPT = Path(__file__).parent / "predictions_job.py"
STRATEGIES = (
    "allreduce()",
    "fully_sharded()",
    "synchronous(codec=int8())",
    "asynchronous()",
    "local_sgd(every=8)",
    "gossip()",
)
ALIKE = 0.1
"""Twice the margin of a plan: a difference that it should have seen."""
SECONDS = 30.0
"""How long each real run trains, with its beginning: connecting, and TCP's slow start."""


@dataclass(frozen=True)
class Paced:
    """A job whose computing is sleeping."""

    width: int
    """Of the hidden layer: the model has about 4 × 64 × width bytes."""
    batch: int
    step: float = 0.06
    """Seconds of a batch without samples."""
    sample: float = 0.03
    """Seconds of a sample. A step takes so long that what the processes of all hosts compute beside
    it, encryption above all, leaves the cores of this machine free for most of the time."""
    seconds: float = SECONDS
    """Of a run: a few dozen steps at least."""
    dilation: float = 1.0
    """How many times as long all of this takes, in a situation whose links are as much slower."""
    blocks: int = 0
    """Layers between which the time is divided, so that a pipeline can be; with 0 the loss takes
    all of it."""

    def computing(self, samples: float) -> float:
        """Seconds of so many samples."""
        return self.dilation * (self.step + self.sample * samples)


@dataclass(frozen=True)
class Situation:
    """A job on a cluster."""

    name: str
    job: Paced
    cluster: str
    workers: int
    slow: tuple[str, ...] = ()
    strategies: tuple[str, ...] = STRATEGIES
    counts: bool = True
    """Whether it is part of the summary."""

    @property
    def is_local(self) -> bool:
        """Whether it has no network."""
        return self.cluster.startswith("1 host")


SMALL, MEDIUM, LARGE = (Paced(width, 32) for width in (800, 4_000, 16_000))
"""0.2, 1 and 4 MB."""
DILATED = 4.0
"""Two cores for each of four hosts, as far as these can tell."""
LONG = replace(LARGE, seconds=50.0)
"""4 MB behind slow links: a step takes more than a second."""
DEEP = Paced(2_000, 32, step=0.0, blocks=8)
"""0.5 MB, and 8 kB of outputs for each sample."""
SITUATIONS = (
    Situation("one host, 4 workers, 0.2 MB", SMALL, "1 host of 4 workers", 4),
    Situation("1 Gbit/s, 1 MB", MEDIUM, "4 hosts of 1 worker, 1gbit", 4),
    Situation("100 Mbit/s, 1 MB", MEDIUM, "4 hosts of 1 worker, 100mbit", 4),
    Situation("20 Mbit/s, 0.2 MB", SMALL, "4 hosts of 1 worker, 20mbit", 4),
    Situation("1 Gbit/s, 4 MB", LARGE, "4 hosts of 1 worker, 1gbit", 4),
    Situation("100 Mbit/s, 4 MB", LONG, "4 hosts of 1 worker, 100mbit", 4),
    Situation("1 Gbit/s, one 4 × slower", SMALL, "4 hosts of 1 worker, 1gbit", 4, ("3:4x",)),
    Situation(
        "100 Mbit/s, 1 MB, one 3 × slower", MEDIUM, "4 hosts of 1 worker, 100mbit", 4, ("1:3x",)
    ),
    Situation("8 workers, 20 Mbit/s, 0.2 MB", SMALL, "8 hosts of 1 worker, 20mbit", 8),
    Situation(
        "two sites, 50 Mbit/s and 20 ms between",
        SMALL,
        "2 sites of 2 workers, 1gbit within, 50mbit and 20ms between",
        4,
    ),
    *(
        Situation(
            f"servers {name}, 1 Gbit/s, 4 MB{words}",
            dilated,
            f"4 workers, {1000 / dilated.dilation:g}mbit, servers {where}",
            4,
            strategies=("synchronous(servers=4)", "asynchronous(servers=4)"),
            counts=bool(words),
        )
        for dilated, words in (
            (LARGE, ""),
            (
                replace(LARGE, dilation=DILATED, seconds=2 * SECONDS),
                f", {DILATED:g} times as slow",
            ),
        )
        for name, where in (
            ("in turn", "in turn"),
            ("on hosts of their own", "on 4 hosts apart"),
            ("on host 0", "at host 0"),
        )
    ),
    Situation(
        "pipelines, 50 Mbit/s, 8 blocks",
        DEEP,
        "4 hosts of 1 worker, 50mbit",
        4,
        strategies=(
            "allreduce()",
            "pipeline(microbatches=4)",
            "pipeline(microbatches=8)",
            "pipeline(microbatches=8, schedule=gpipe)",
            "pipeline(microbatches=16)",
        ),
    ),
)


class Block(nn.Module):
    """A layer that sleeps for every sample: a third of the time forward, the rest backward."""

    def __init__(self, width: int, sample: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.sample = sample

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The sum with its weight, after the sleep."""
        seconds = self.sample * len(inputs)
        time.sleep(seconds / 3)
        passed: torch.Tensor = late(inputs + self.weight, 2 * seconds / 3)
        return passed


def job(paced: Paced) -> mh.Job:
    """A small regression whose loss takes its time."""
    inputs = torch.randn(4096, 32, generator=torch.Generator().manual_seed(7))

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if not paced.blocks:
            time.sleep(paced.computing(len(outputs)))
        return nn.functional.mse_loss(outputs, targets)

    def model() -> nn.Module:
        blocks = [Block(paced.width, paced.sample / paced.blocks) for _ in range(paced.blocks)]
        return nn.Sequential(nn.Linear(32, paced.width), *blocks, nn.Linear(paced.width, 32))

    return mh.Job(
        model=model,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-4),
        loss=loss,
        data=torch.utils.data.TensorDataset(inputs, inputs.clone()),
        global_batch=paced.batch,
        seconds=paced.seconds,
        metrics=(),
    )


@dataclass(frozen=True)
class Case:
    """A strategy in a situation, in samples per second."""

    strategy: str
    predicted: float
    measured: float
    low: float
    high: float
    virtual: float | None = None
    """What `compare --virtual` says, which knows nothing of this job but the time for a batch."""

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        return self.predicted / self.measured - 1


def calibration(paced: Paced, folder: Path) -> mh.Calibration:
    """What `manyhands calibrate` measures of a job."""
    target = folder / f"calibration-{key(paced)}.json"
    if not target.exists():
        usual = replace(paced, dilation=1.0)
        command("calibrate", str(_SCRIPT), "--output", str(target), about=usual)
    return read_calibration(target)


def dilated(known: mh.Calibration, paced: Paced) -> mh.Calibration:
    """The same with longer sleeps; what this machine really computes takes no longer."""
    usual = replace(paced, dilation=1.0)
    compute = tuple(
        msgspec.structs.replace(
            one,
            seconds=one.seconds + paced.computing(one.samples) - usual.computing(one.samples),
        )
        for one in known.compute
    )
    return msgspec.structs.replace(known, compute=compute)


def crowded(known: mh.Calibration, situation: Situation) -> mh.Calibration:
    """What batches, exchanges and collectives take in a situation."""
    known, slower = dilated(known, situation.job), situation.job.dilation
    return known if situation.is_local else crowding(known, situation.workers, slower)


def crowding(known: mh.Calibration, workers: int, slower: float = 1.0) -> mh.Calibration:
    """What exchanges and collectives cost if all hosts share the cores of this machine.

    Args:
        known: what was measured.
        workers: the workers on all hosts.
        slower: how many times as long everything else takes, so that cores are that much faster.
    """
    factor = max(1.0, known.crowding(workers) / slower)
    return msgspec.structs.replace(
        known,
        exchange=known.exchange * factor,
        served=None if known.served is None else known.served * factor,
        collective=known.collective * factor,
        sharded=known.sharded * factor,
    )


def measure(
    situation: Situation, known: mh.Calibration, strategies: Sequence[str], folder: Path
) -> list[Case]:
    """Run for real, and predict."""
    target = Path(tempfile.mkdtemp(dir=folder))
    where = ["--cluster", situation.cluster]
    if situation.is_local:
        where = ["--workers", str(situation.workers)]
    command(
        *("compare", str(_SCRIPT), "--strategies", ", ".join(strategies), "--repeats", "1"),
        *("--output", str(target / "live"), *where),
        *itertools.chain.from_iterable(("--slow", pace) for pace in situation.slow),
        about=situation.job,
    )
    rates = rates_of(target / "live")
    cases = predict(situation, known, rates)
    if situation.slow or situation.is_local or situation.job.blocks:
        return cases
    virtual = simulated(situation, strategies, target / "virtual")
    return [replace(case, virtual=virtual[case.strategy]) for case in cases]


def simulated(situation: Situation, strategies: Sequence[str], folder: Path) -> dict[str, float]:
    """What `compare --virtual` says of strategies, of the time for a batch alone."""
    paced = situation.job
    seconds = paced.computing(paced.batch / situation.workers)
    command(
        *("compare", str(_SCRIPT), "--strategies", ", ".join(strategies), "--repeats", "1"),
        *("--virtual", "--time-only", "--cluster", situation.cluster),
        *("--times", f"constant({seconds})", "--output", str(folder)),
        about=paced,
    )
    return rates_of(folder)


def rates_of(folder: Path) -> dict[str, float]:
    """The samples per second of each strategy in a comparison."""
    return {
        str(mh.strategy(run.strategy)): throughput(Run(folder / run.folder).trace).rate
        for run in read_results(folder).runs
        if run.status != "failed"
    }


def predict(
    situation: Situation, known: mh.Calibration, measured: Mapping[str, float]
) -> list[Case]:
    """What a plan says of strategies whose speed was measured, the fastest first."""
    planned = mh.plan(
        job(situation.job),
        situation.cluster,
        crowded(known, situation),
        strategies=list(measured),
        workers=[situation.workers],
        slow=situation.slow,
    )
    if planned.left_out:
        raise RuntimeError(f"{situation.name}: {planned.left_out}")
    return [
        Case(one.strategy, one.rate, measured[one.strategy], one.low, one.high)
        for one in planned.ranking
        if one.strategy in measured
    ]


def predict_again(stored: Mapping[str, Any]) -> dict[str, list[Case]]:
    """The stored speeds and calibrations, with what is predicted from them now."""
    found = {}
    for situation in SITUATIONS:
        if situation.name in stored:
            known = msgspec.convert(stored["calibrations"][key(situation.job)], mh.Calibration)
            measured = {case["strategy"]: case["measured"] for case in stored[situation.name]}
            found[situation.name] = predict(situation, known, measured)
    return found


def with_stored(
    found: Mapping[str, list[Case]], calibrations: Mapping[str, Any]
) -> tuple[dict[str, list[Case]], dict[str, Any]]:
    """What was found now, and what is stored of all other situations, in their order."""
    stored = kept("predictions")["figures"]
    others = {
        one.name: [Case(**case) for case in stored[one.name]]
        for one in SITUATIONS
        if one.name in stored
    }
    every = {**others, **found}
    ordered = {one.name: every[one.name] for one in SITUATIONS if one.name in every}
    return ordered, {**stored["calibrations"], **calibrations}


def key(paced: Paced) -> str:
    """The name of a job."""
    name = f"{paced.width}-{paced.batch}"
    return f"{name}-{paced.blocks}" if paced.blocks else name


def command(*words: str, about: Any) -> None:
    """Run a command of ours to its end; its script is told about a job, as JSON."""
    search = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    run_to_end(
        [sys.executable, "-m", "manyhands", *words, "--", json.dumps(asdict(about))],
        {"PYTHONPATH": os.pathsep.join(search), "OMP_NUM_THREADS": "1"},
    )


def tau(cases: Sequence[Case]) -> float | None:
    """Kendall's tau, over pairs whose speeds differ by more than the margin in both.

    None if there is no such pair: the plan cannot tell any two of them apart, nor can the runs.
    """
    agree = disagree = 0
    for one, two in itertools.combinations(cases, 2):
        predicted, measured = one.predicted / two.predicted, one.measured / two.measured
        if min(abs(predicted - 1), abs(measured - 1)) < MARGIN:
            continue
        if (predicted > 1) == (measured > 1):
            agree += 1
        else:
            disagree += 1
    return (agree - disagree) / (agree + disagree) if agree + disagree else None


def told_alike(cases: Sequence[Case]) -> list[float]:
    """How far apart strategies really are that the plan cannot tell apart, pair by pair.

    As in `PlannedStrategy.resembles`: their ranges overlap, or they differ by less than its margin.
    """
    return [
        abs(one.measured / two.measured - 1)
        for one, two in itertools.combinations(cases, 2)
        if (one.low <= two.high and two.low <= one.high)
        or abs(one.predicted / two.predicted - 1) < MARGIN
    ]


def regret(cases: Sequence[Case]) -> float:
    """How much slower the plan's first choice is than the fastest one, as a share of it."""
    fastest = max(case.measured for case in cases)
    return 1 - cases[0].measured / fastest


def summary(found: dict[str, list[Case]]) -> dict[str, float]:
    """The figures over all situations that count."""
    beside = {one.name for one in SITUATIONS if not one.counts}
    found = {name: cases for name, cases in found.items() if name not in beside}
    errors = sorted(abs(case.error) for cases in found.values() for case in cases)
    regrets = [regret(cases) for cases in found.values()]
    taus = [one for one in map(tau, found.values()) if one is not None]
    alike = [one for cases in found.values() for one in told_alike(cases)]
    return {
        "cases": len(errors),
        "median error": round(statistics.median(errors), 4),
        "p90 error": round(errors[min(len(errors) - 1, int(0.9 * len(errors)))], 4),
        "median tau": round(statistics.median(taus), 3) if taus else math.nan,
        "least tau": round(min(taus), 3) if taus else math.nan,
        "median regret": round(statistics.median(regrets), 4),
        "largest regret": round(max(regrets), 4),
        "pairs told alike": len(alike),
        "median difference of these": round(statistics.median(alike), 4) if alike else math.nan,
        "of these more than 10 % apart": sum(one > ALIKE for one in alike),
    }


def show(name: str, cases: Sequence[Case], write: Callable[[str], None]) -> None:
    """A table of one situation."""
    order = tau(cases)
    words = "no two can be told apart" if order is None else f"tau {order:.2f}"
    write(f"{name}: {words}, regret {100 * regret(cases):.1f} %")
    for case in cases:
        write(
            f"  {case.strategy:28} predicted {case.predicted:8.1f} measured {case.measured:8.1f} "
            f"samples/s  {100 * case.error:+6.1f} %{_of_virtual(case)}"
        )


def _of_virtual(case: Case) -> str:
    if case.virtual is None:
        return ""
    error = case.virtual / case.measured - 1
    return f"   virtual {case.virtual:8.1f} samples/s  {100 * error:+6.1f} %"


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="situations whose name holds this")
    parser.add_argument("--strategies", help="in place of the usual ones, separated by semicolons")
    parser.add_argument("--calibrations", type=Path, help="folder for calibrations, to use again")
    parser.add_argument(
        "--stored", action="store_true", help="run nothing: predict the stored runs again"
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="store the figures as results; with --only those of other situations stay",
    )
    given = parser.parse_args()
    asked = given.strategies.split(";") if given.strategies else None
    found: dict[str, list[Case]] = {}
    calibrations: dict[str, Any] = {}
    if given.stored:
        stored = kept("predictions")["figures"]
        calibrations = stored["calibrations"]
        found = predict_again(stored)
        for name, cases in found.items():
            show(name, cases, print)
    else:
        with tempfile.TemporaryDirectory() as folder:
            for situation in SITUATIONS:
                if given.only in situation.name:
                    place = Path(folder)
                    known = calibration(situation.job, given.calibrations or place)
                    # Stored figures have no paths of a machine.
                    named = msgspec.structs.replace(known, script=_SCRIPT.name)
                    calibrations[key(situation.job)] = msgspec.to_builtins(named)
                    strategies = asked or situation.strategies
                    found[situation.name] = measure(situation, known, strategies, place)
                    show(situation.name, found[situation.name], _say)
    if given.keep and given.only:
        found, calibrations = with_stored(found, calibrations)
    figures: dict[str, object] = {
        **summary(found),
        "calibrations": calibrations,
        **{name: [asdict(case) for case in cases] for name, cases in found.items()},
    }
    print(summary(found))
    if given.keep:
        keep("predictions", figures)
    report("predictions", figures)


if __name__ == "__main__":
    main()
