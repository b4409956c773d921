"""Goodput under faults: samples per living worker-second, as a fraction of a run without faults.

A worker lives from the moment at which its process is ready to train until it is killed, without
the time in which it is stopped. Live, four workers and two servers of `asynchronous` and the
coordinator are killed, or workers stopped, one fault every 15 s; worker 0 is among them. On the
virtual cluster the same with 10,000 workers. Every sample has to be accounted for exactly once; in
live runs the model itself counts how often each sample was applied: never less than once in an
epoch, and twice at most if it is among the repeated ones.

    python -m benchmarks.goodput --seconds 600
"""

import argparse
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import manyhands as mh
from benchmarks.figures import keep, report
from benchmarks.goodput_job import SAMPLES
from manyhands.faults import Crash, Faults, Pause
from manyhands.reports import Run
from manyhands.reports.figures.fault_times import fault_times
from manyhands.reports.figures.speed import accounting, started, training_interval

LEAST = 0.9
STRATEGY = "asynchronous(servers=2)"
WORKERS = 4
VIRTUAL_WORKERS = 10_000
VIRTUAL_STEP = 10.0
"""Seconds of a virtual batch: 10,000 workers push 1,000 updates in a virtual second."""
JOB = Path(__file__).with_name("goodput_job.py")


@dataclass(frozen=True)
class Goodput:
    """Samples per living worker-second, with faults and without."""

    kind: str
    workers: int
    seconds: float
    faults: int
    samples: int
    lost: int
    repeated: int
    rate: float
    """Samples per living worker-second, with faults."""
    reference: float
    """The same without faults."""
    missing: int = 0
    """Samples that the model counts less often than once in every epoch."""
    twice: int = 0
    """Those that it counts more often: their worker was killed when a server had its update, and
    before the coordinator knew that it had finished. They are among the repeated ones."""

    @property
    def fraction(self) -> float:
        """What is left of the rate."""
        return self.rate / self.reference


def living_seconds(run: Run) -> float:
    """Seconds in which workers lived, of a live run."""
    faults = fault_times(run.trace)
    origin = min(training_interval(worker)[0] for worker in run.trace.workers)
    total = 0.0
    for worker in run.trace.workers:
        name = worker.name
        begin, end = started(worker) - origin, training_interval(worker)[1] - origin
        own = [one for one in faults if name in one.fault.members()]
        killed = [one.at for one in own if isinstance(one.fault, Crash) and one.at >= begin]
        end = min([end + 1.0, *killed]) if killed else end
        stopped = sum(
            max(0.0, min(end, one.over or end) - max(begin, one.at))
            for one in own
            if isinstance(one.fault, Pause)
        )
        total += max(0.0, end - begin - stopped)
    return total


def train(samples: int, faults: str, folder: Path) -> Run:
    """A live run of so many samples."""
    options = ["--strategy", STRATEGY, "--workers", str(WORKERS), "--samples", str(samples)]
    options += ["--faults", faults] if faults else []
    command = [sys.executable, "-m", "manyhands", "train", str(JOB), *options]
    subprocess.run([*command, "--quiet", "--output", str(folder)], check=True)
    return Run(folder)


def live(seconds: float, every: float, seed: int, folder: Path) -> Goodput:
    """Goodput of real processes over about so many seconds."""
    plain = train(5 * SAMPLES, "", folder / "plain")
    reference = plain.samples / living_seconds(plain)
    epochs = max(1, round(0.9 * reference * WORKERS * seconds / SAMPLES))
    samples = epochs * SAMPLES
    run = train(
        samples, f"random(every={every:g}, seed={seed}, coordinator=true)", folder / "faults"
    )
    kept = accounting(run.trace)
    counts = run.state_dict()["count"]
    return Goodput(
        kind="live",
        workers=WORKERS,
        seconds=seconds,
        faults=len(fault_times(run.trace)),
        samples=run.samples - samples,
        lost=kept.lost or 0,
        repeated=kept.repeated or 0,
        rate=run.samples / living_seconds(run),
        reference=reference,
        missing=round(float((epochs - counts).clamp(min=0).sum())),
        twice=round(float((counts - epochs).clamp(min=0).sum())),
    )


def virtual(seconds: float, every: float, seed: int, workers: int, folder: Path) -> Goodput:
    """Goodput of a virtual cluster over so many virtual seconds."""
    rounds = max(2, round(0.9 * seconds / VIRTUAL_STEP))
    job = mh.Job(
        model=lambda: torch.nn.Linear(10, 10),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-6),
        loss=torch.nn.functional.cross_entropy,
        data=torch.utils.data.TensorDataset(
            torch.zeros(workers, 10), torch.zeros(workers, dtype=torch.long)
        ),
        global_batch=workers,
        epochs=rounds,
        metrics=(),
    )
    drawn = f"every={every:g}, seed={seed}, until={2 * seconds:g}, coordinator=true"
    text = f"random({drawn})"
    runs = {}
    for name, faults in (("plain", None), ("faults", text)):
        runs[name] = mh.simulate(
            job,
            STRATEGY,
            workers=workers,
            times=f"lognormal({VIRTUAL_STEP}, cv=0.3)",
            faults=faults,
            time_only=True,
            output=folder / f"virtual-{name}",
        )
    took = {name: run.seconds for name, run in runs.items()}
    happened = [one for one in Faults.read(text).drawn(workers, 2) if _at(one) < took["faults"]]
    crashes = [one for one in happened if isinstance(one, Crash) and one.server is None]
    dead = sum(one.restart or 0.0 for one in crashes)
    dead += sum(one.seconds or 0.0 for one in happened if isinstance(one, Pause))
    kept = accounting(runs["faults"].trace)
    return Goodput(
        kind="virtual",
        workers=workers,
        seconds=took["faults"],
        faults=len(happened),
        samples=runs["faults"].samples - rounds * workers,
        lost=kept.lost or 0,
        repeated=kept.repeated or 0,
        rate=runs["faults"].samples / (workers * took["faults"] - dead),
        reference=runs["plain"].samples / (workers * took["plain"]),
    )


def _at(fault: object) -> float:
    at: float = getattr(fault, "at", 0.0)
    return at


def check(measured: Goodput) -> None:
    """Print a measurement, and fail if it is too low or a sample is missing."""
    print(
        f"{measured.kind}: {measured.faults} faults in {measured.seconds:.0f} s, "
        f"{measured.rate:.3f} samples per living worker-second, {measured.reference:.3f} without "
        f"faults: {measured.fraction:.3f}; {measured.repeated} samples repeated, "
        f"{measured.twice} of them applied twice, {measured.missing} missing"
    )
    assert measured.samples == 0, f"{measured.samples:+d} samples in the accounting"
    assert measured.missing == 0, f"{measured.missing} samples not applied in every epoch"
    assert measured.twice <= measured.repeated, f"{measured.twice} samples applied twice"
    assert measured.lost == 0, f"{measured.lost} samples lost"
    assert measured.fraction >= LEAST, f"goodput {measured.fraction:.3f}, expected {LEAST}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--every", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--workers", type=int, default=VIRTUAL_WORKERS, help="virtual workers")
    parser.add_argument("--only", choices=["live", "virtual"], default=None)
    parser.add_argument("--keep", action="store_true", help="store the figures")
    asked = parser.parse_args()
    figures = {}
    with tempfile.TemporaryDirectory() as name:
        if asked.only != "virtual":
            figures["live"] = live(asked.seconds, asked.every, asked.seed, Path(name))
        if asked.only != "live":
            about = (asked.seconds, asked.every, asked.seed, asked.workers)
            figures["virtual"] = virtual(*about, Path(name))
    told = {kind: {**asdict(one), "fraction": one.fraction} for kind, one in figures.items()}
    report("goodput", told)
    if asked.keep:
        keep("goodput", told)
    for one in figures.values():
        check(one)


if __name__ == "__main__":
    main()
