"""Two sites, live in network namespaces and virtual: one declared cluster, the same speed.

Two sites of two workers each, with a fast network within and a slow, long way between them. One
command compares the strategies on it, live; the same with `--virtual` is its twin. Computing is
paced (`benchmarks.paced`): a worker sleeps for as long as a batch takes, and the virtual run is
given that time and nothing else. What is compared is the steady state, without the first epoch and
the last. A strategy that is further apart than it may be is measured once more: other processes on
a busy machine are not what is measured.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import manyhands as mh
from benchmarks.figures import keep, report, write_table
from benchmarks.paced import Launch, run_to_end, steady_rate
from manyhands.reports import Run, read_results

CLUSTER = "2 sites of 2 workers, 1gbit within, 100mbit and 40ms between"
STRATEGIES = (
    "allreduce()",
    "diloco(every=10)",
    "hierarchical(outer=diloco(every=10))",
    "gossip()",
)
SECONDS = 0.1
"""Of a batch; longer than the way to the coordinator and back, which leases the next meanwhile."""
APART = 0.1
"""How far from 1 the ratio of speeds may be."""
_EPOCH, _EPOCHS = 80, 5
_ROOT = Path(__file__).parent.parent
_SCRIPT = Path(__file__).parent / "sites_job.py"


def job(loss: Callable[..., torch.Tensor] = nn.functional.mse_loss) -> mh.Job:
    """A small regression; its parameters have 0.2 MB, which take 16 ms between the sites."""
    inputs = torch.randn(_EPOCH, 8, generator=torch.Generator().manual_seed(7))
    return mh.Job(
        model=lambda: nn.Sequential(nn.Linear(8, 2048), nn.Linear(2048, 16)),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-4),
        loss=loss,
        data=torch.utils.data.TensorDataset(inputs, torch.cat([inputs, inputs], 1)),
        global_batch=4,
        epochs=_EPOCHS,
        metrics=(),
    )


@dataclass(frozen=True)
class Speeds:
    """Updates per second of a strategy on the cluster."""

    strategy: str
    live: float
    virtual: float
    attempts: int = 1

    @property
    def ratio(self) -> float:
        """Of the two speeds."""
        return self.live / self.virtual

    @property
    def agree(self) -> bool:
        """Whether they are as close as they must be."""
        return abs(self.ratio - 1) <= APART

    @property
    def row(self) -> str:
        """For the table."""
        return f"| `{self.strategy}` | {self.live:.2f} | {self.virtual:.2f} | {self.ratio:.3f} |"


HEADING = "| strategy | live | virtual | live / virtual |\n| --- | --- | --- | --- |"


def compare_live(
    strategies: Iterable[str], folder: Path, launch: Launch = run_to_end
) -> dict[str, float]:
    """Compare strategies live, with one command; return their speeds."""
    search = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    launch(
        [
            *(sys.executable, "-m", "manyhands", "compare", str(_SCRIPT)),
            *("--cluster", CLUSTER, "--strategies", ", ".join(strategies)),
            *("--repeats", "1", "--output", str(folder)),
        ],
        {"PYTHONPATH": os.pathsep.join(search), "OMP_NUM_THREADS": "1"},
    )
    return _speeds(folder)


def compare_virtually(strategies: Iterable[str], folder: Path) -> dict[str, float]:
    """The same comparison on the virtual cluster."""
    times = f"constant({SECONDS})"
    mh.compare(
        job(),
        list(strategies),
        cluster=CLUSTER,
        virtual=True,
        times=times,
        repeats=1,
        output=folder,
    )
    return _speeds(folder)


def _speeds(folder: Path) -> dict[str, float]:
    results = read_results(folder)
    failed = [f"{run.strategy}: {run.words}" for run in results.runs if run.status == "failed"]
    if failed:
        raise RuntimeError("; ".join(failed))
    return {run.strategy: steady_rate(Run(folder / run.folder)) for run in results.runs}


def measure(
    strategies: Iterable[str], folder: Path, launch: Launch = run_to_end
) -> dict[str, Speeds]:
    """Both comparisons; the live one once more for strategies that are too far apart."""
    virtual = compare_virtually(strategies, folder / "virtual")
    live = compare_live(strategies, folder / "live-1", launch)
    found = {name: Speeds(name, live[name], virtual[name]) for name in virtual}
    again = [name for name, speeds in found.items() if not speeds.agree]
    if again:
        live = compare_live(again, folder / "live-2", launch)
        found |= {name: replace(found[name], live=live[name], attempts=2) for name in again}
    return found


def table(figures: dict[str, Any]) -> str:
    """The speeds as they are shown in the documentation."""
    return "\n".join([HEADING, *(Speeds(**each).row for each in figures.values())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="the strategies whose text holds this; nothing is stored")
    given = parser.parse_args()
    chosen = [text for text in STRATEGIES if not given.only or given.only in text]
    print(f"{CLUSTER}; {1e3 * SECONDS:g} ms a batch")
    print(HEADING)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(chosen, Path(folder))
    for speeds in found.values():
        print(speeds.row, "" if speeds.agree else "too far apart", flush=True)
    figures: dict[str, object] = {name: asdict(speeds) for name, speeds in found.items()}
    if not given.only:
        keep("sites", figures)
        write_table("sites", table(figures))
    report("sites", figures)


if __name__ == "__main__":
    main()
