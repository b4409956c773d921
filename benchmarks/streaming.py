"""DiLoCo in fragments that are exchanged while workers compute, and with a quorum.

Four workers, each on a host behind 100 Mbit/s; computing is paced: a worker sleeps for as long as a
batch takes. A round of plain `diloco` moves 4 MB to the servers and back, and workers wait for it.
Throughput is a fraction of that of workers which do nothing but compute, `ensemble()`, in the same
comparison: beside the sleep a batch takes what its small model takes. Live hosts are network
namespaces; the virtual run is given the links and the time of a batch, and nothing else.

Then one of four workers computes nothing for half of a run. What is trained is given as a fraction
of what workers that do nothing but compute train with the same absence.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import manyhands as mh
from benchmarks.figures import keep, kept, report
from benchmarks.paced import Launch, run_to_end
from manyhands.reports import Run, read_results

WORKERS = 4
CLUSTER = "4 hosts of 1 workers, 100mbit and 1ms, servers in turn"
SECONDS = 0.05
"""Of a batch."""
EVERY = 20
ALONE = "ensemble()"
"""Workers that do nothing but compute: the rate that exchanging can only lower."""
STRATEGIES = (
    ALONE,
    f"diloco(every={EVERY}, servers=4)",
    f"diloco(every={EVERY}, fragments=4, overlap=18)",
)
QUORUM = (
    ALONE,
    f"diloco(every={EVERY}, fragments=4, overlap=18)",
    f"diloco(every={EVERY}, fragments=4, overlap=18, wait_for=3)",
)
ENOUGH = 0.95
"""The fraction of the compute-bound rate that overlapping is to reach."""
ENOUGH_WITH_ONE_GONE = 0.88
EPOCH, EPOCHS = 400, 24
"""Updates. The last rounds, during which nothing is computed, take 1.5 s of two minutes."""
_ROOT = Path(__file__).parent.parent
_SCRIPT = Path(__file__).parent / "streaming_job.py"


@dataclass(frozen=True)
class Absence:
    """The last worker is gone for a while."""

    seconds: float
    """Of the whole run."""
    at: float
    """When it goes, in seconds."""
    gone: float
    """For how long."""


MINUTE = Absence(60.0, 15.0, 30.0)


def job(
    loss: Callable[..., torch.Tensor] = nn.functional.mse_loss, seconds: float | None = None
) -> mh.Job:
    """A regression whose parameters have 4 MB."""
    inputs = torch.randn(EPOCH, 8, generator=torch.Generator().manual_seed(7))
    return mh.Job(
        model=lambda: nn.Sequential(nn.Linear(8, 2048), nn.Linear(2048, 480), nn.Linear(480, 4)),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-4),
        loss=loss,
        data=torch.utils.data.TensorDataset(inputs, inputs[:, :4].clone()),
        global_batch=WORKERS,
        epochs=None if seconds else EPOCHS,
        seconds=seconds,
        metrics=(),
    )


def speeds(folder: Path) -> dict[str, float]:
    """By strategy, the fraction of the compute-bound rate in a comparison."""
    results = read_results(folder)
    failed = [f"{run.strategy}: {run.words}" for run in results.runs if run.status == "failed"]
    if failed:
        raise RuntimeError("; ".join(failed))
    found: dict[str, list[float]] = {}
    for run in results.runs:
        found.setdefault(run.strategy, []).append(run.rate)
    means = {name: sum(each) / len(each) for name, each in found.items()}
    return {name: rate / means[ALONE] for name, rate in means.items()}


def compare_live(
    strategies: Iterable[str], folder: Path, repeats: int, launch: Launch = run_to_end
) -> dict[str, float]:
    """Compare strategies live, in one interleaved run."""
    launch(
        [
            *(sys.executable, "-m", "manyhands", "compare", str(_SCRIPT)),
            *("--cluster", CLUSTER, "--strategies", ", ".join(strategies)),
            *("--repeats", str(repeats), "--output", str(folder)),
        ],
        _environment(),
    )
    return speeds(folder)


def compare_virtually(strategies: Iterable[str], folder: Path) -> dict[str, float]:
    """The same on the virtual cluster."""
    times = f"constant({SECONDS})"
    texts = list(strategies)
    mh.compare(job(), texts, cluster=CLUSTER, virtual=True, times=times, repeats=1, output=folder)
    return speeds(folder)


def trained_live(strategy: str, absence: Absence, folder: Path, launch: Launch = run_to_end) -> int:
    """Samples that are trained live with one worker gone."""
    launch(
        [
            *(sys.executable, "-m", "manyhands", "train", str(_SCRIPT)),
            *("--strategy", strategy, "--workers", str(WORKERS), "--output", str(folder)),
            *("--", json.dumps(asdict(absence))),
        ],
        _environment(),
    )
    return Run(folder).samples


def trained_virtually(strategy: str, absence: Absence, folder: Path) -> int:
    """The same on the virtual cluster."""
    run = mh.simulate(
        job(seconds=absence.seconds),
        strategy,
        workers=WORKERS,
        times=f"constant({SECONDS})",
        bandwidth="10gbit",
        faults=f"[pause(worker={WORKERS - 1}, at={absence.at}, seconds={absence.gone})]",
        output=folder,
    )
    return run.samples


def goodput(trained: Callable[[str, Absence, Path], int], folder: Path) -> dict[str, float]:
    """By strategy, what is trained as a fraction of what workers can compute meanwhile."""
    found = {text: trained(text, MINUTE, folder / f"{n}") for n, text in enumerate(QUORUM)}
    return {text: samples / found[ALONE] for text, samples in found.items()}


def _environment() -> dict[str, str]:
    search = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(search), "OMP_NUM_THREADS": "1"}


def _show(title: str, virtual: dict[str, float], live: dict[str, float]) -> None:
    print(f"\n| {title} | live | virtual |\n| --- | --- | --- |")
    for name, fraction in virtual.items():
        measured = f"{live[name]:.3f}" if name in live else "–"
        print(f"| `{name}` | {measured} | {fraction:.3f} |", flush=True)


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--virtual", action="store_true", help="no live runs; nothing is stored")
    parser.add_argument("--only", choices=["fraction", "goodput"], help="one of the two parts")
    parser.add_argument("--repeats", type=int, default=1, help="of every live run")
    given = parser.parse_args()
    print(f"{CLUSTER}; {1e3 * SECONDS:g} ms a batch")
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.only != "goodput":
            virtual = compare_virtually(STRATEGIES, folder / "virtual")
            live = {}
            if not given.virtual:
                live = compare_live(STRATEGIES, folder / "live", given.repeats)
            _show("fraction of the compute-bound rate", virtual, live)
            figures["fraction"] = {"live": live, "virtual": virtual}
        if given.only != "fraction":
            virtual = goodput(trained_virtually, folder / "pause")
            live = {} if given.virtual else goodput(trained_live, folder / "gone")
            _show("one of four gone for half of a minute", virtual, live)
            figures["goodput"] = {"live": live, "virtual": virtual}
    if not given.virtual:
        keep("streaming", _earlier() | figures)
    report("streaming", figures)


def _earlier() -> dict[str, Any]:
    """What is stored of parts that were not measured now."""
    try:
        return dict(kept("streaming")["figures"])
    except FileNotFoundError:
        return {}


if __name__ == "__main__":
    main()
