"""`compare`: one job under several strategies, and which of them is best."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from manyhands.cluster import Cluster
from manyhands.faults import Faults
from manyhands.files.run_folders import new_folder, release, stamp
from manyhands.lab.conduct import conduct, runs_at_once
from manyhands.lab.design import Budget, Design, VirtualConditions, script_of
from manyhands.lab.display import ComparisonDisplay
from manyhands.lab.entrants import Sweeps, read_entrants
from manyhands.lab.launcher import start
from manyhands.lab.networks.sites import check_live
from manyhands.lab.reproduction.assumed import with_consequences
from manyhands.notation import Value
from manyhands.pacing import Pace
from manyhands.reports.comparison.results import FILE, write_results
from manyhands.reports.comparison.verdict import verdict
from manyhands.reports.page import write_page
from manyhands.reports.render.notebook import page_html
from manyhands.reports.render.table import table
from manyhands.script import loading as scripts
from manyhands.script.cell_line import cell_line
from manyhands.script.job_changes import as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pandas as pd

    from manyhands.intervals import Every
    from manyhands.job import Job
    from manyhands.lab.launcher import Launcher
    from manyhands.reports import Comparison, Table
    from manyhands.strategies import Strategy
    from manyhands.virtual import Times

STRATEGIES = "single, allreduce, ssp(staleness=4), asynchronous, local_sgd(every=8)"
"""What is compared by default."""
REPEATS = 3
MARGIN = 0.05


@dataclass(frozen=True)
class Compared:
    """A comparison that was made: its results, its verdict and its report.

    Example:
        >>> import manyhands as mh
        >>> found = mh.Compared(Path("comparisons/1"), mh.Comparison(), report=None)
        >>> found.verdict
        'No run has finished.'
    """

    folder: Path
    """The comparison's folder, which holds its runs."""
    results: Comparison
    """All figures, as in `results.json`."""
    report: Path | None
    """The page with the charts; None if the extra `manyhands[report]` is not installed."""

    @property
    def verdict(self) -> str:
        """Which strategy to use, and why: a line each."""
        found = verdict(self.results)
        return found.words if found else "No run has finished."

    def summary(self) -> str:
        """The figures, the verdict, and the paths of the results and the report.

        Returns:
            The text that `manyhands compare` prints.
        """
        # Also in a notebook the text is only returned.
        console = Console(width=100, file=io.StringIO(), force_jupyter=False)
        with console.capture() as captured:
            console.print(table(self.results))
        return f"{captured.get()}{self.where()}"

    def frame(self, table: Table = "runs") -> pd.DataFrame:
        """A table of the runs as a pandas data frame; `docs/results.md` lists its columns.

        Args:
            table: "runs", a row per run; "curves", a row per point of a validation metric or of
                the training loss; "staleness", a row per staleness that occurred.

        Returns:
            The data frame.

        Raises:
            ModuleNotFoundError: the extra `manyhands[pandas]` is not installed.
        """
        return self.results.frame(table)

    def to_csv(self, path: Path | str, table: Table = "runs") -> Path:
        """Write a table of the runs as CSV.

        Args:
            path: the file to write.
            table: as for `frame`.

        Returns:
            The path.
        """
        return self.results.to_csv(path, table)

    def to_jsonl(self, path: Path | str, table: Table = "runs") -> Path:
        """Write a table of the runs as JSON lines: one object per row.

        Args:
            path: the file to write.
            table: as for `frame`.

        Returns:
            The path.
        """
        return self.results.to_jsonl(path, table)

    def _repr_html_(self) -> str:
        """The summary and the page with the charts, for notebooks."""
        return page_html(self.summary(), self.report)

    def where(self) -> str:
        """The paths of the results and the report, or how to install what draws it."""
        drawn = f"{self.report}: open it in a browser"
        if self.report is None:
            drawn = f"pip install 'manyhands[report]', then manyhands report {self.folder}"
        return f"  results      {self.folder / FILE}\n  report       {drawn}"


def compare(
    job: Job | Callable[..., Job],
    strategies: str | Strategy | Iterable[str | Strategy] | None = None,
    *,
    sweep: str | Iterable[str] = (),
    workers: int | Iterable[int] | None = None,
    repeats: int = REPEATS,
    epochs: float | None = None,
    samples: int | None = None,
    seconds: float | None = None,
    target: str | None = None,
    seed: int | None = None,
    lr: str | float | None = None,
    evaluate_every: str | Every | None = None,
    measures: str | None = None,
    slow: Iterable[str | Pace] | None = None,
    faults: str | Faults | None = None,
    network: str | None = None,
    virtual: bool = False,
    cluster: str | Cluster | None = None,
    times: str | Times | None = None,
    bandwidth: str | float | None = None,
    latency: str | float | None = None,
    cores: int | None = None,
    hosts: int | None = None,
    coding: str | float | None = None,
    time_only: bool | None = None,
    processes: int | None = None,
    margin: float = MARGIN,
    price: float | None = None,
    output: str | Path | None = None,
) -> Compared:
    """Run a job under several strategies, alike in everything else, and say which is best.

    Every repeat runs all strategies once, with one seed, in an order that is turned round from one
    repeat to the next. Call it below `if __name__ == "__main__":` with a job that is defined at the
    top level of the script, as `train`; with `virtual=True` the job may be defined anywhere. A
    notebook shows the report below the cell.

    Args:
        job: what to train, or a function that returns it, called without arguments or with the
            values of its free parameters (`mh.free`).
        strategies: how to train: one text with commas between strategies, or several texts or
            values. Default: a few of the usual ones, or none beside swept ones.
        sweep: values to compare, for a curve: "softsync(wait_for=1..8)", or several of such texts.
            Beside options of strategies these can be swept: "workers=2..16 step 2",
            "lr={0.01, 0.1}", "slow={0:2x, 0:4x}", "network={100mbit, 1gbit}", and of a virtual
            cluster times, bandwidth, latency, cores, hosts and coding. Several are combined.
        workers: number of workers; several numbers compare how each strategy scales. Default: one
            per GPU; without a GPU one per core, at most four.
        repeats: number of runs of each strategy. With fewer than two, differences cannot be told
            from chance.
        epochs: stop after this many passes over the data, in place of the job's limit.
        samples: stop after this many samples, in place of the job's limit.
        seconds: stop after this many seconds of training, in place of the job's limit.
        target: stop when a validation metric reaches a value: "accuracy >= 0.97".
        seed: seed of the first repeat, in place of the job's; each further repeat adds 1.
        lr: learning rate, in place of the optimizer's: 0.01; or a factor of it: "0.5x".
        evaluate_every: when to evaluate: "5000" samples or "10s", in addition to the end of every
            epoch; or "0.25 epochs", in place of it. Default: the job's.
        measures: what to record at evaluations beside metrics, separated by commas:
            "gradient_norm, spread, staleness". Default: the job's.
        slow: workers that are slowed on purpose: `["2:4x"]` makes worker 2 compute 4 times as
            long, `["all:1.2x"]` every worker 1.2 times.
        faults: what goes wrong on purpose in every run: "crash worker 2 at 20 s; stop worker 1 from
            30 s to 45 s", or "random(every=15, seed=3)".
        network: put each worker behind a link of its own, on this machine: "100mbit".
        virtual: run on a virtual cluster of any size.
        cluster: the sites, hosts and links, as text or as a value: "2 sites of 8 workers, 1gbit
            within, 100mbit and 40ms between". Workers are on its hosts in blocks of ranks, servers
            where it says; islands of `hierarchical()` follow its sites.
        times: seconds that a worker computes on a batch, its part of a global one; under a
            placement that divides the model, on its part of the work. Default: "lognormal(0.1,
            cv=0.3)".
        bandwidth: bandwidth of the links between virtual hosts, "100mbit" or bytes per second.
            Default: all are on one host.
        latency: latency of the links, "0.5ms" or seconds. Default: 0.1 ms.
        cores: cores of each host. Default: one for every worker on it.
        hosts: number of virtual hosts that the workers are divided among, in blocks of ranks, the
            same for all strategies. Default: one per worker.
        coding: bytes of vectors per second at which codecs encode and decode, or "2GB/s"; "free"
            for no time. Default: the speed of each as it was measured on one core of an Intel Xeon
            at 2.5 GHz.
        time_only: compute no gradients, parameters and metrics in virtual runs: what is compared is
            time alone.
        processes: number of virtual runs that are made at the same time, each in a process of its
            own; 1 makes all in this process. The results are the same. Default: one per core.
        margin: a difference in speed that does not matter, as a fraction.
        price: price of a worker for an hour, for the cost of runs.
        output: folder for the comparison; an interrupted one is continued. Default: a new one in
            `comparisons`.

    Returns:
        The comparison: its results, its verdict, and the path of its report.

    Raises:
        ValueError: an option is out of range, contradicts another, or is not simulated, with
            `virtual=True`; or `output` holds another comparison.

    Example:
        >>> import torch
        >>> import manyhands as mh
        >>> data = torch.utils.data.TensorDataset(torch.eye(2).repeat(32, 1), torch.arange(64) % 2)
        >>> job = mh.Job(
        ...     model=lambda: torch.nn.Linear(2, 2),
        ...     optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1.0),
        ...     loss=torch.nn.functional.cross_entropy,
        ...     data=data,
        ...     validation=data,
        ...     global_batch=16,
        ...     epochs=2,
        ... )
        >>> found = mh.compare(
        ...     job,
        ...     [mh.strategies.synchronous(), "asynchronous"],
        ...     workers=2,
        ...     repeats=1,
        ...     virtual=True,
        ...     slow=["1:4x"],
        ... )
        >>> for run in found.results.runs:
        ...     print(run.label, run.status)
        synchronous() × 2 finished
        asynchronous() × 2 finished
    """
    if scripts.is_loading():
        raise RuntimeError(
            "mh.compare was called while a worker executed the script: put the call below "
            'if __name__ == "__main__": so that only the first process makes it'
        )
    source, job = job, scripts.made(job)
    if isinstance(strategies, Value):
        strategies = (strategies,)
    declared = _declared(cluster, virtual)
    conditions = _conditions(
        virtual,
        VirtualConditions(
            times=times,
            bandwidth=bandwidth,
            latency=latency,
            cores=cores,
            hosts=hosts,
            coding=coding,
            time_only=time_only,
        ),
    )
    sweeps = Sweeps.read((sweep,) if isinstance(sweep, str) else sweep)
    if sweeps.workers and workers is not None:
        raise ValueError("workers is given twice, fixed and swept: keep one")
    design = Design(
        entrants=read_entrants(chosen(strategies, sweeps), sweeps),
        workers=sweeps.workers or _numbers(workers, declared),
        sweeps=sweeps,
        lr=as_text(lr),
        script=script_of(job, source, sys._getframe(1), required=not virtual),
        seed=job.seed if seed is None else seed,
        budget=Budget(
            epochs=epochs,
            samples=samples,
            seconds=seconds,
            target=target,
            evaluate_every=as_text(evaluate_every),
            measures=measures,
        ),
        slow=tuple(map(Pace.read, slow or ())),
        faults=Faults.read(faults or ""),
        network=_network(network, virtual),
        virtual=conditions,
        cluster=declared,
        repeats=repeats,
        margin=margin,
        price=price,
    )
    folder = None if output is None else Path(output)
    return carry_out(design, job, folder, Console(stderr=True), processes=processes)


def chosen(
    strategies: str | Iterable[str | Strategy] | None, sweeps: Sweeps
) -> str | Iterable[str | Strategy]:
    """The strategies that were named; by default a few, and none if strategies are swept."""
    if strategies or sweeps.strategies:
        return strategies or ()
    return STRATEGIES


def carry_out(
    design: Design,
    job: Job,
    folder: Path | None,
    console: Console,
    launch: Launcher = start,
    processes: int | None = None,
) -> Compared:
    """Make the runs of a design, show its progress, and write its report."""
    at_once = runs_at_once(design, processes)
    folder = folder or new_folder(Path("comparisons") / stamp())
    if design.script is not None:
        design = replace(design, script=design.script.inside(folder))
    try:
        display = ComparisonDisplay(len(design.turns), console, at_once=at_once, cell=cell_line())
        with display:
            results = conduct(design, job, folder, display, launch, at_once)
            results = with_consequences(results, design, job)
            write_results(results, folder / FILE)
    except (TypeError, ValueError):
        release(folder)
        raise
    return Compared(folder, results, _draw(results, folder))


def _draw(results: Comparison, folder: Path) -> Path | None:
    """Draw the report; None if the extra that draws it is not installed."""
    page = folder / "report.html"
    try:
        write_page(results, page)
    except ModuleNotFoundError:
        return None
    return page


def _numbers(workers: int | Iterable[int] | None, cluster: Cluster | None) -> tuple[int, ...]:
    if workers is None:
        return ((cluster or Cluster.local()).default_workers(),)
    return (workers,) if isinstance(workers, int) else tuple(workers)


def _declared(cluster: str | Cluster | None, virtual: bool) -> Cluster | None:
    declared = None if cluster is None else Cluster.parse(cluster)
    if declared is not None and not virtual:
        check_live(declared)
    return declared


def _network(text: str | None, virtual: bool) -> str:
    if text is not None and virtual:
        raise ValueError("network makes links between real processes; a virtual one's: bandwidth")
    return text or ""


def _conditions(virtual: bool, given: VirtualConditions) -> VirtualConditions | None:
    """The conditions of a virtual comparison; None for a live one, which refuses any."""
    if not virtual:
        for name, value in vars(given).items():
            if value is not None:
                raise ValueError(
                    f"{name} describes a virtual cluster, and a live comparison runs on this "
                    "machine: add virtual=True, or leave it out"
                )
        return None
    return given
