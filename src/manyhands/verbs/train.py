"""`train`: a run on real processes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.cluster import Cluster
from manyhands.failure import Refused, refusing
from manyhands.files.run_folders import check_free, claim, new_folder, release, stamp
from manyhands.live.agent.agent import launch
from manyhands.live.devices import devices
from manyhands.live.hosts.host_list import Hosts
from manyhands.live.request import Request, RunSetting
from manyhands.live.worker import torchrun
from manyhands.pacing import Pace, words
from manyhands.reports import Run
from manyhands.script import loading as script
from manyhands.script.origin import Overrides, override
from manyhands.strategies import Strategy
from manyhands.strategies import strategy as read_strategy
from manyhands.verbs.command import Command, choose, current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from manyhands.job import Job
    from manyhands.live.worker.trainer import Trainer

_folders: set[Path] = set()
_MANY = 1024
"""More workers than a host has GPUs."""


def train(
    job: Job,
    strategy: str | Strategy | None = None,
    *,
    workers: int | None = None,
    cluster: Cluster | None = None,
    hosts: str | None = None,
    listen: str | None = None,
    loop: Callable[[Trainer], object] | None = None,
    slow: Iterable[str | Pace] | None = None,
    output: str | Path | None = None,
) -> Run:
    """Train a job under a strategy on real processes.

    Call it below `if __name__ == "__main__":` with a job that stands at the top level of the
    script: each worker executes the script, up to that guard, and takes the job by its name.
    Under torchrun, its processes are the workers.

    Args:
        job: what to train.
        strategy: how, as text or value: "allreduce()". Default: `single()` for one worker,
            `allreduce()` for more.
        workers: how many. Default: one per GPU; without one, one per core, at most four.
        cluster: this machine as a cluster of one host: its name, and the cores that decide how
            many workers and threads there are by default. Several hosts are named with `hosts`.
        hosts: the hosts of the run, this one first, each with its number of workers: "a:4, b:4".
            The run begins when the others have joined, by the line that this one prints.
        listen: at which of this host's addresses the others find it; by default that of its
            default route, at a free port.
        loop: a loop of one's own, a function of a `Trainer` at the top level of the script.
        slow: workers that are made to compute longer than they need: `["2:4x"]` has worker 2 take
            four times as long, `["all:1.2x"]` everybody 1.2 times.
        output: the folder for this run; by default a new one in `runs`.

    Returns:
        The run: its summary, metrics, trace and trained parameters.

    Raises:
        Refused: what was asked cannot be done.
        RunFailed: a process failed; the message ends with its traceback.
    """
    return train_from(
        sys._getframe(1).f_globals,
        job,
        strategy,
        workers=workers,
        cluster=cluster,
        hosts=hosts,
        listen=listen,
        loop=loop,
        slow=slow,
        output=output,
    )


def train_from(
    namespace: Mapping[str, Any],
    job: Job,
    strategy: str | Strategy | None = None,
    *,
    workers: int | None = None,
    cluster: Cluster | None = None,
    hosts: str | None = None,
    listen: str | None = None,
    loop: Callable[[Trainer], object] | None = None,
    slow: Iterable[str | Pace] | None = None,
    output: str | Path | None = None,
) -> Run:
    """As `train`, for a job that stands in the namespace of a module that is not the caller's."""
    if script.is_loading():
        raise RuntimeError(
            "mh.train was reached while a worker executed the script: put it below "
            'if __name__ == "__main__": so that only the first process calls it'
        )
    command = current()
    cluster = cluster or Cluster.local()
    with refusing():
        spread = _hosts(command, hosts, workers)
        workers = spread.workers if spread else workers
        paces = None if slow is None else tuple(map(Pace.read, slow))
        plan = _plan(job, strategy, workers, cluster, paces, output, command, spread)
        if loop is not None and not plan.strategy.needs(plan.workers).collectives:
            raise ValueError(
                f"{plan.strategy} has a training loop of its own and cannot use loop=: leave it "
                "out, or use a strategy without servers, such as allreduce()"
            )
    if torchrun.is_torchrun():
        # Torchrun's other processes take part in the folder that the first one takes.
        own = Path() if torchrun.rank() else _taken_folder(plan)
        folder = torchrun.join(
            job, plan.strategy, plan.overrides, loop, own, plan.settings, plan.slow
        )
    else:
        with refusing():
            origin = script.trace_back(job, loop, namespace)
        folder = _taken_folder(plan)
        request = Request(
            job=job,
            origin=origin,
            overrides=plan.overrides,
            strategy=plan.strategy,
            workers=plan.workers,
            cluster=plan.cluster,
            folder=folder,
            settings=plan.settings,
            slow=plan.slow,
            hosts=spread,
            listen=command.listen or listen,
            key=command.key_file,
            patience=command.patience,
            quiet=command.quiet,
        )
        try:
            launch(request)
        except Refused:
            release(folder)
            _folders.discard(folder)
            raise
    run = Run(folder, worker=torchrun.rank() if torchrun.is_torchrun() else 0)
    command.runs.append(run)
    return run


def _hosts(command: Command, hosts: str | None, workers: int | None) -> Hosts | None:
    """The hosts that were named, if any were; whoever names them says how many workers."""
    text = command.hosts or hosts
    if text is None:
        return None
    if torchrun.is_torchrun():
        raise ValueError("under torchrun its processes are the workers: leave out hosts")
    named = Hosts.read(text)
    named.check_count(command.workers if command.hosts else command.workers or workers)
    return named


@dataclass(frozen=True)
class _Plan:
    """What the script, the command line and the defaults come to."""

    strategy: Strategy
    workers: int
    cluster: Cluster
    overrides: Overrides
    output: Path | None
    """The folder that was asked for."""
    settings: tuple[RunSetting, ...]
    slow: tuple[Pace, ...]


def _plan(
    job: Job,
    strategy: str | Strategy | None,
    workers: int | None,
    cluster: Cluster,
    slow: tuple[Pace, ...] | None,
    output: str | Path | None,
    command: Command,
    hosts: Hosts | None,
) -> _Plan:
    if hosts is None and len(cluster.hosts) > 1:
        raise ValueError(
            f"train starts processes on this machine only, and the cluster has "
            f'{len(cluster.hosts)} hosts: name them with hosts=, as in "a:4, b:4", and join from '
            "the others"
        )
    count, counted_by = choose(command.workers, workers, _default_workers(cluster))
    if torchrun.is_torchrun():
        count, counted_by = torchrun.workers(), "torchrun"
    elif hosts is not None:
        count, counted_by = hosts.workers, "command line" if command.hosts else "script"
    recipe, told_by = choose(
        command.strategy, strategy, "single()" if count == 1 else "allreduce()"
    )
    chosen = read_strategy(recipe)
    if counted_by == "default" and chosen.needs(count).only_one_worker:
        count = 1
    chosen.check(count)
    chosen.check_job(job, count)
    paces, paced_by = choose(command.slow, slow, ())
    for pace in paces:
        pace.check(count)
    overrides = Overrides(
        epochs=command.epochs,
        samples=command.samples,
        seconds=command.seconds,
        target=command.target,
        seed=command.seed,
        durability=command.durability,
    )
    settings = (
        RunSetting("strategy", str(chosen), told_by),
        RunSetting("workers", str(count), counted_by),
        *([RunSetting("slow", words(paces), paced_by)] if paces else ()),
        *_job_settings(job, command, overrides),
        *_place_settings(hosts, cluster, command),
        RunSetting("cores", str(cluster.cores), "default"),
        RunSetting("torch", version("torch"), "default"),
        RunSetting("manyhands", version("manyhands"), "default"),
    )
    asked = command.output or (Path(output) if output else None)
    return _Plan(chosen, count, cluster, overrides, asked, settings, paces)


def _default_workers(cluster: Cluster) -> int:
    """One worker per GPU; without one, one per core, at most four."""
    return len({*devices(_MANY)} - {"cpu"}) or cluster.default_workers()


def _place_settings(
    hosts: Hosts | None, cluster: Cluster, command: Command
) -> Iterator[RunSetting]:
    if hosts is None:
        yield RunSetting("hosts", str(len(cluster.hosts)), "default")
        return
    source = "command line" if command.hosts else "script"
    yield RunSetting("hosts", str(len(hosts.names)), source)
    yield RunSetting("workers by host", str(hosts), source)
    if command.network is not None:
        yield RunSetting("network", command.network, "command line")


def _job_settings(job: Job, command: Command, overrides: Overrides) -> Iterator[RunSetting]:
    """The job's limits and seed, as they are in force."""
    for name, value in override(job, overrides).settings.items():
        told = getattr(command, name, None) is not None
        yield RunSetting(name, value, "command line" if told else "script")


def _taken_folder(plan: _Plan) -> Path:
    with refusing():
        return _take_folder(plan.output, plan.strategy, plan.workers)


def _take_folder(asked: Path | None, strategy: Strategy, workers: int) -> Path:
    """Create a folder that holds no run yet; no other process can take the same one.

    Several runs of one script with one `--output` are numbered; a folder that holds an earlier
    run is refused.
    """
    if asked is None:
        folder = new_folder(Path("runs") / f"{stamp()}-{strategy.name}-{workers}")
        claim(folder)
        return folder
    folder, number = asked, 1
    while folder in _folders or not claim(folder):
        if asked not in _folders:
            check_free(asked)
        number += 1
        folder = asked.with_name(f"{asked.name}-{number}")
    _folders.add(folder)
    return folder
