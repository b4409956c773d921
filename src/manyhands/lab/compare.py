"""`compare`: one job under several strategies, and what comes of it."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from manyhands.cluster import Cluster
from manyhands.files.run_folders import new_folder, release, stamp
from manyhands.lab.conduct import conduct
from manyhands.lab.design import Budget, Design, Script, VirtualConditions
from manyhands.lab.display import ComparisonDisplay
from manyhands.lab.entrants import read_entrants
from manyhands.lab.launcher import start
from manyhands.notation import Value
from manyhands.pacing import Pace
from manyhands.reports.comparison.results import FILE
from manyhands.reports.comparison.verdict import verdict
from manyhands.reports.page import write_page
from manyhands.reports.render.table import table
from manyhands.script import loading as scripts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from manyhands.job import Job
    from manyhands.lab.launcher import Launcher
    from manyhands.reports import Comparison
    from manyhands.strategies import Strategy

STRATEGIES = "single, allreduce, ssp(staleness=4), asynchronous, local_sgd(every=8)"
"""What is compared by default."""
VIRTUAL = "synchronous, ssp(staleness=4), asynchronous, local_sgd(every=8)"
"""And on a virtual cluster, which has nothing of PyTorch's own engine."""
REPEATS = 3
MARGIN = 0.05


@dataclass(frozen=True)
class Compared:
    """A comparison that was made."""

    folder: Path
    results: Comparison
    """All of its figures, as `results.json` holds them."""
    report: Path | None
    """The page with the charts; None where the extra that draws it is missing."""

    @property
    def verdict(self) -> str:
        """What to use, and why: a line each."""
        found = verdict(self.results)
        return found.words if found else "No run has finished."

    def summary(self) -> str:
        """The figures, the verdict, and where the rest is."""
        console = Console(width=100, file=io.StringIO())
        with console.capture() as captured:
            console.print(table(self.results))
        return f"{captured.get()}{self.where()}"

    def where(self) -> str:
        """Where the results and the report are, or how to have one."""
        drawn = f"{self.report}: open it in a browser"
        if self.report is None:
            drawn = f"pip install 'manyhands[report]', then manyhands report {self.folder}"
        return f"  results      {self.folder / FILE}\n  report       {drawn}"


def compare(
    job: Job,
    strategies: str | Strategy | Iterable[str | Strategy] | None = None,
    *,
    workers: int | Iterable[int] | None = None,
    repeats: int = REPEATS,
    epochs: float | None = None,
    samples: int | None = None,
    seconds: float | None = None,
    target: str | None = None,
    seed: int | None = None,
    slow: Iterable[str | Pace] = (),
    network: str | None = None,
    virtual: bool = False,
    times: str | None = None,
    bandwidth: str | None = None,
    latency: str | None = None,
    cores: int | None = None,
    hosts: int | None = None,
    margin: float = MARGIN,
    price: float | None = None,
    output: str | Path | None = None,
) -> Compared:
    """Run a job under several strategies, alike in everything else, and say which is best.

    Every repeat runs all strategies once, with one seed, in an order that is turned round from one
    repeat to the next. Call it below `if __name__ == "__main__":` with a job that stands at the
    top level of the script, as `train`.

    Args:
        job: what to train.
        strategies: which, as one text with commas between them, or as several texts or values.
        workers: how many; several numbers compare how each strategy scales.
        repeats: how often each is run. With fewer than two nothing can be told apart.
        epochs: the budget of every run, in place of the job's; or
        samples: likewise; or
        seconds: likewise.
        target: what a run may stop at, as in "accuracy >= 0.97".
        seed: of the first repeat; the next one's is one more. The job's by default.
        slow: workers that compute longer than they need: `["2:4x"]`.
        network: puts every worker in a network namespace behind a link: "100mbit".
        virtual: on a virtual cluster, of any size, in this process.
        times: there: how long a worker computes on a batch, see `simulate`; so are
        bandwidth: of links between hosts,
        latency: of those links,
        cores: of each host, and
        hosts: how many the workers are divided among, in blocks of ranks. All strategies run on
            the same ones: by default one per worker, or one per island if a strategy has islands.
        margin: a difference in speed that does not matter, as a share.
        price: of a worker for an hour.
        output: the comparison's folder. One that was interrupted goes on where it was.

    Returns:
        Its results, its verdict, and where its report is.
    """
    if scripts.is_loading():
        raise RuntimeError(
            "mh.compare was reached while a worker executed the script: put it below "
            'if __name__ == "__main__": so that only the first process calls it'
        )
    if isinstance(strategies, Value):
        strategies = (strategies,)
    design = Design(
        entrants=read_entrants(strategies or (VIRTUAL if virtual else STRATEGIES)),
        workers=_numbers(workers),
        script=None if virtual else _script(job, sys._getframe(1).f_globals),
        seed=job.seed if seed is None else seed,
        budget=Budget(epochs=epochs, samples=samples, seconds=seconds, target=target),
        slow=tuple(map(Pace.read, slow)),
        network=_network(network, virtual),
        virtual=_conditions(virtual, times, bandwidth, latency, cores, hosts),
        repeats=repeats,
        margin=margin,
        price=price,
    )
    return carry_out(design, job, None if output is None else Path(output), Console(stderr=True))


def carry_out(
    design: Design, job: Job, folder: Path | None, console: Console, launch: Launcher = start
) -> Compared:
    """Make the runs of a design, showing how far it is, and write its report."""
    folder = folder or new_folder(Path("comparisons") / stamp())
    try:
        with ComparisonDisplay(len(design.turns), console) as display:
            results = conduct(design, job, folder, display, launch)
    except (TypeError, ValueError):
        release(folder)
        raise
    return Compared(folder, results, _draw(results, folder))


def _draw(results: Comparison, folder: Path) -> Path | None:
    """Draw the report; None where what draws it is not installed."""
    page = folder / "report.html"
    try:
        write_page(results, page)
    except ModuleNotFoundError:
        return None
    return page


def _numbers(workers: int | Iterable[int] | None) -> tuple[int, ...]:
    if workers is None:
        return (Cluster.local().default_workers(),)
    return (workers,) if isinstance(workers, int) else tuple(workers)


def _script(job: Job, namespace: Mapping[str, Any]) -> Script:
    origin = scripts.trace_back(job, None, namespace)
    if origin.package:
        raise ValueError(
            f"{origin.script} is a part of the package {origin.package}, and every run of a "
            "comparison executes it as a file: start it as one, or compare a script"
        )
    return Script(path=Path(origin.script), job=origin.job, arguments=origin.argv[1:])


def _network(text: str | None, virtual: bool) -> str:
    if text is not None and virtual:
        raise ValueError("network makes links between real processes; a virtual one's: bandwidth")
    return text or ""


def _conditions(
    virtual: bool,
    times: str | None,
    bandwidth: str | None,
    latency: str | None,
    cores: int | None,
    hosts: int | None,
) -> VirtualConditions | None:
    given = VirtualConditions(
        times=times, bandwidth=bandwidth, latency=latency, cores=cores, hosts=hosts
    )
    if virtual:
        return given
    for name, value in vars(given).items():
        if value is not None:
            raise ValueError(f"{name} describes a virtual cluster: say virtual, too")
    return None
