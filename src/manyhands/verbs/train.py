"""`train`: a run on real processes."""

from __future__ import annotations

import contextlib
import itertools
import sys
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from manyhands.cluster import Cluster
from manyhands.failure import Refused, RunFailed, refusing
from manyhands.faults import Faults
from manyhands.files.checkpoints.attempts import set_aside
from manyhands.files.run_folders import check_free, claim, new_folder, stamp
from manyhands.files.standard_streams import unwritable_ignored
from manyhands.job import Job
from manyhands.live.agent.agent import launch
from manyhands.live.agent.memory_check import check_hosts
from manyhands.live.devices import devices
from manyhands.live.hosts.shared_folder import check_over
from manyhands.live.hosts.slurm import read_hosts
from manyhands.live.processes.fork_server import environment
from manyhands.live.request import Request, RunSetting
from manyhands.live.worker import torchrun
from manyhands.pacing import Pace, words
from manyhands.reports import Run
from manyhands.script import loading as script
from manyhands.script.job_changes import CHANGES, JobChanges, as_text
from manyhands.script.origin import Overrides, override
from manyhands.script.user_traceback import wants_all
from manyhands.strategies import Strategy, check_job
from manyhands.strategies import strategy as read_strategy
from manyhands.verbs.calling import calling
from manyhands.verbs.command import Command, choose, chosen_values, current
from manyhands.verbs.resuming import find_checkpoint, resume_settings
from manyhands.verbs.run_checks import check_faults, check_measures
from manyhands.verbs.run_settings import job_settings, place_settings
from manyhands.verbs.server_hosts import (
    on_declared_islands,
    servers_by_default,
    servers_on_hosts,
    words_for_hosts,
)
from manyhands.verbs.unbegun import freeing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import FrameType

    from manyhands.files.checkpoints import Checkpoint
    from manyhands.intervals import Every
    from manyhands.live.hosts.host_list import Hosts
    from manyhands.live.worker.trainer import Trainer

_folders: set[Path] = set()
_MANY = 1024
"""More workers than a host has GPUs."""
_LOOPBACK = "127.0.0.1"
_OF_COMMANDS = ("durability", "double", "perturbed", "timed_batch", "timed_links")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(JobChanges):
    """What a script asks of a live run; None where it says nothing."""

    values: Mapping[str, Any] | None = None
    strategy: str | Strategy | None = None
    workers: int | None = None
    cluster: Cluster | None = None
    hosts: str | None = None
    listen: str | None = None
    servers_on: str | None = None
    loop: Callable[[Trainer], object] | None = None
    resume: str | Path | None = None
    slow: tuple[Pace, ...] | None = None
    faults: Faults | None = None
    output: Path | None = None


def train(
    job: Job | Callable[..., Job],
    strategy: str | Strategy | None = None,
    *,
    workers: int | None = None,
    cluster: str | Cluster | None = None,
    hosts: str | None = None,
    listen: str | None = None,
    servers_on: str | None = None,
    loop: Callable[[Trainer], object] | None = None,
    epochs: float | None = None,
    samples: int | None = None,
    seconds: float | None = None,
    target: str | None = None,
    seed: int | None = None,
    lr: str | float | None = None,
    evaluate_every: str | Every | None = None,
    measures: str | None = None,
    global_batch: int | None = None,
    checkpoint: str | Every | None = None,
    keep: int | None = None,
    resume: str | Path | None = None,
    slow: Iterable[str | Pace] | None = None,
    faults: str | Faults | None = None,
    output: str | Path | None = None,
    values: Mapping[str, Any] | None = None,
) -> Run:
    """Train a job under a strategy on real processes.

    Call it below `if __name__ == "__main__":` with a job that is defined at the top level of the
    script: each worker executes the script, up to that guard, and takes the job by its name. For a
    job that is made elsewhere, give a function at the top level that returns it. In a notebook or
    in IPython no guard is needed: workers execute the statements that the job needs.
    Under torchrun, its processes are the workers. Options of `manyhands train` win over these.

    Args:
        job: what to train, or a function that returns it, called without arguments or with the
            values of its free parameters (`mh.free`).
        strategy: how to train, as text or as a value: "allreduce()" or `mh.strategies.allreduce()`.
            Default: `single()` for one worker, `allreduce()` for more.
        workers: number of workers. Default: one per GPU; without a GPU one per core, at most four.
        cluster: this machine, as a cluster of one host. Its cores limit the threads, and its
            cores or devices give the default number of workers. Default: `Cluster.local()`.
        hosts: the hosts of the run, this one first, each with its number of workers: "a:4, b:4".
            The others join with the command that this one prints. "slurm": this job's nodes.
        listen: the address, or address:port, at which other hosts reach this one. Default: the
            address of the default route, and a free port.
        servers_on: hosts of the servers, one after the other: "a, b" or "all". Default: those
            without workers, and otherwise all, so that a single server is on the first host.
        loop: a training loop of your own, a function of a `Trainer` at the top level of the script.
        epochs: stop after this many passes over the data, in place of the job's limit.
        samples: stop after this many samples, in place of the job's limit.
        seconds: stop after this many seconds of training, in place of the job's limit.
        target: stop when a validation metric reaches a value: "accuracy >= 0.97".
        seed: seed of the run, in place of the job's.
        lr: learning rate, in place of the optimizer's: 0.01; or a factor of it: "0.5x".
        evaluate_every: when to evaluate: "5000" samples or "10s", in addition to the end of every
            epoch; or "0.25 epochs", in place of it. Default: the job's.
        measures: what to record at evaluations beside metrics, separated by commas:
            "gradient_norm, spread, staleness". Default: the job's.
        global_batch: samples of a global batch, in place of the job's.
        checkpoint: when to store a checkpoint: "10min", "1000 steps", "50000 samples"
            or "1 epochs"; or "10s in memory". Default: the job's.
        keep: number of checkpoints that are kept. Default: the job's.
        resume: the folder of a run that is continued from its last checkpoint, with any strategy
            and number of workers. Default: the folder `output`, if it has an unfinished run.
        slow: workers that are slowed on purpose: `["2:4x"]` makes worker 2 compute 4 times as
            long, `["all:1.2x"]` every worker 1.2 times.
        faults: what goes wrong on purpose: "crash worker 2 at 20 s; stop worker 1 from 30 s to
            45 s", or "random(every=15, seed=3)"; times count from the first samples.
        output: folder for the run. Default: a new one in `runs`.
        values: values of the job's free parameters, by name. Default: the start of each.

    Returns:
        The run: its summary, metrics, trace and trained parameters.

    Raises:
        Refused: the request cannot be carried out; nothing was started.
        RunFailed: a process failed; the message ends with its traceback.
        RuntimeError: it was called above the main guard, by a worker.

    Example:
        A script for `python script.py` and `manyhands train script.py`::

            job = mh.Job(model=…, …)

            if __name__ == "__main__":
                run = mh.train(job, mh.strategies.ssp(staleness=4), workers=4)
                print(run.summary())

        A request that cannot be carried out is refused before any process starts:

        >>> import torch
        >>> import manyhands as mh
        >>> job = mh.Job(
        ...     model=lambda: torch.nn.Linear(2, 2),
        ...     optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        ...     loss=torch.nn.functional.mse_loss,
        ...     data=torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 2)),
        ...     global_batch=4,
        ...     epochs=1,
        ... )
        >>> mh.train(job, mh.strategies.tensor(ways=2), workers=3)
        Traceback (most recent call last):
        ...
        manyhands.failure.Refused: the number of workers must be a multiple of ways=2, got 3: use 4
    """
    with refusing():
        asked = TrainOptions(
            values=values,
            strategy=strategy,
            workers=workers,
            cluster=None if cluster is None else Cluster.parse(cluster),
            hosts=hosts,
            listen=listen,
            servers_on=servers_on,
            loop=loop,
            epochs=epochs,
            samples=samples,
            seconds=seconds,
            target=target,
            seed=seed,
            lr=as_text(lr),
            evaluate_every=as_text(evaluate_every),
            measures=measures,
            global_batch=global_batch,
            checkpoint=as_text(checkpoint),
            keep=keep,
            resume=resume,
            slow=None if slow is None else tuple(map(Pace.read, slow)),
            faults=None if faults is None else Faults.read(faults),
            output=None if output is None else Path(output),
        )
    frame = sys._getframe(1)
    try:
        return train_from(frame.f_globals, job, asked, frame)
    except (Refused, RunFailed) as error:
        # The message says what to do; our frames would hide the caller's line.
        raise error if wants_all() else error.with_traceback(None) from None


@unwritable_ignored()
def train_from(
    namespace: Mapping[str, Any],
    source: Job | Callable[..., Job],
    asked: TrainOptions | None = None,
    frame: FrameType | None = None,
) -> Run:
    """As `train`, for a job in the namespace of a module that need not be the caller's."""
    if script.is_loading():
        raise RuntimeError(
            "mh.train was called while a worker executed the script: put the call below "
            'if __name__ == "__main__": so that only the first process makes it'
        )
    command, asked = current(), asked or TrainOptions()
    with refusing():
        made_by = None if isinstance(source, Job) else source
        values = chosen_values(source, asked.values, command.values)
        job = script.made(source, values)
        asked = replace(asked, strategy=asked.strategy or values.get("strategy"))
        spread = _hosts(command, asked)
        plan = _plan(job, asked, command, spread)
        if asked.loop is not None and not plan.strategy.needs(plan.workers).collectives:
            raise ValueError(
                f"{plan.strategy} has a training loop of its own and cannot use loop=: leave it "
                "out, or use a strategy without servers, such as allreduce()"
            )
    if torchrun.is_torchrun():
        # Torchrun's other processes take part in the folder that the first one takes.
        own = Path() if torchrun.rank() else _taken_folder(plan)
        called = override(job, plan.overrides)
        with calling(called, own) if torchrun.rank() == 0 else contextlib.nullcontext():
            folder = torchrun.join(
                job, plan.strategy, plan.overrides, asked.loop, own, plan.settings, plan.slow
            )
    else:
        with refusing():
            origin = script.trace_back(
                job, asked.loop, namespace, made_by=made_by, values=values, frame=frame
            )
        folder = _taken_folder(plan)
        request = Request(
            job=job,
            origin=origin.stored(folder),
            overrides=plan.overrides,
            strategy=plan.strategy,
            workers=plan.workers,
            cluster=plan.cluster,
            folder=folder,
            settings=plan.settings,
            slow=plan.slow,
            faults=plan.faults,
            hosts=spread,
            server_hosts=plan.server_hosts,
            listen=plan.listen,
            link=_link(command),
            resume=None if plan.resumed is None else plan.resumed.folder,
            key=command.key_file,
            patience=command.patience,
            quiet=command.quiet,
        )
        with freeing(folder, _folders), calling(override(job, plan.overrides), folder):
            launch(request)
    run = Run(
        folder,
        worker=torchrun.rank() if torchrun.is_torchrun() else 0,
        model=override(job, plan.overrides).model,
    )
    command.runs.append(run)
    return run


def _link(command: Command) -> float | None:
    """Bytes per second of the slowest link of a declared network; None if none was declared."""
    if command.cluster is None:
        return command.link
    declared = Cluster.parse(command.cluster)
    names = [host.name for host in declared.hosts]
    links = [declared.between(*pair) for pair in itertools.combinations(names, 2)]
    return min((link.bandwidth for link in links if link is not None), default=None)


def _hosts(command: Command, asked: TrainOptions) -> Hosts | None:
    """The hosts that were named, if any were; the list has their numbers of workers."""
    text = command.hosts or asked.hosts
    if text is None:
        return None
    if torchrun.is_torchrun():
        raise ValueError("under torchrun its processes are the workers: leave out hosts")
    named = read_hosts(text)
    named.check_count(command.workers if command.hosts else command.workers or asked.workers)
    return named


@dataclass(frozen=True)
class _Plan:
    """A live run, after the command line, the script and the defaults were combined."""

    strategy: Strategy
    workers: int
    cluster: Cluster
    overrides: Overrides
    output: Path | None
    """The folder that was asked for."""
    settings: tuple[RunSetting, ...]
    slow: tuple[Pace, ...]
    listen: str | None
    """The address at which other hosts reach this one, if one was chosen."""
    server_hosts: tuple[str, ...] = ()
    """The host of each server; empty if all are on the first one."""
    faults: Faults | None = None
    """What goes wrong on purpose."""
    resumed: Checkpoint | None = None
    """The checkpoint that the run continues from."""


def _plan(job: Job, asked: TrainOptions, command: Command, hosts: Hosts | None) -> _Plan:
    cluster = _local() if asked.cluster is None else _checked(asked.cluster)
    count, counted_by = choose(command.workers, asked.workers, cluster.default_workers())
    if torchrun.is_torchrun():
        count, counted_by = torchrun.workers(), "torchrun"
    elif hosts is not None:
        count, counted_by = hosts.workers, "command line" if command.hosts else "script"
    recipe, told_by = choose(
        command.strategy, asked.strategy, "single()" if count == 1 else "allreduce()"
    )
    chosen = on_declared_islands(read_strategy(recipe), command.cluster)
    where_servers, placed_by = choose(command.servers_on, asked.servers_on, None)
    if where_servers is None:
        server_hosts = servers_by_default(command.cluster, hosts, chosen, count)
    else:
        server_hosts = servers_on_hosts(where_servers, hosts, chosen, count)
    if counted_by == "default" and chosen.needs(count).only_one_worker:
        count = 1
    chosen.check(count)
    check_job(chosen, job, count)
    if (declared := command.cluster or asked.cluster) is not None:
        check_hosts(chosen, job, count, Cluster.parse(declared))
    paces, paced_by = choose(command.slow, asked.slow, ())
    for pace in paces:
        pace.check(count)
    faults, faulted_by = choose(command.faults, asked.faults, Faults())
    check_faults(faults, chosen, count, hosts, command)
    overrides = Overrides(
        **{name: _first(getattr(command, name), getattr(asked, name)) for name in CHANGES},
        **{name: getattr(command, name) for name in _OF_COMMANDS},
    )
    check_measures(override(job, overrides), chosen)
    output = command.output or asked.output
    going_on = override(job, overrides)
    resumed = find_checkpoint(command.resume or asked.resume, output, going_on)
    settings = (
        RunSetting("strategy", str(chosen), told_by),
        RunSetting("workers", str(count), counted_by),
        *([RunSetting("slow", words(paces), paced_by)] if paces else ()),
        *resume_settings(resumed, going_on, chosen, count),
        *([RunSetting("faults", str(faults), faulted_by)] if faults else ()),
        *job_settings(job, command, overrides),
        *place_settings(
            hosts, cluster, command, (words_for_hosts(server_hosts, hosts, chosen), placed_by)
        ),
        RunSetting("cores", str(cluster.cores), "default"),
        RunSetting("threads", _threads(cluster, hosts.counts[0][1] if hosts else count), "default"),
        RunSetting("torch", version("torch"), "default"),
        RunSetting("manyhands", version("manyhands"), "default"),
    )
    if asked.listen is not None and hosts is None:
        raise ValueError(
            f"listen={asked.listen!r} is where other hosts reach this one, and the run has one "
            'host: leave it out, or name the others, as in hosts="a:4, b:4"'
        )
    if torchrun.is_torchrun():
        _check_torchrun(override(job, overrides), command.resume or asked.resume)
    listen = command.listen or asked.listen or _address(asked.cluster)
    where = (listen, server_hosts, faults or None, resumed)
    return _Plan(chosen, count, cluster, overrides, output, settings, paces, *where)


def _check_torchrun(job: Job, resume: str | Path | None) -> None:
    """Refuse what needs an agent, which torchrun does not start."""
    for name, given in (("checkpoint", job.checkpoint), ("resume", resume)):
        if given is not None:
            raise ValueError(
                f"{name}={given} needs processes that torchrun does not start: leave it out, or "
                "start the run with python or manyhands train"
            )


def _threads(cluster: Cluster, here: int) -> str:
    """Threads of each process on this host, which has so many workers."""
    if torchrun.is_torchrun():
        return str(torch.get_num_threads())
    return environment(cluster.hosts[0].cores, here)["OMP_NUM_THREADS"]


def _first(*given: Any) -> Any:
    """The first that was given."""
    return next((value for value in given if value is not None), None)


def _local() -> Cluster:
    """This machine, with the devices that torch finds."""
    (host,) = Cluster.local().hosts
    return Cluster((replace(host, devices=_devices()),))


def _devices() -> tuple[str, ...]:
    """The GPUs of this machine, as torch names them."""
    return tuple(dict.fromkeys(device for device in devices(_MANY) if device != "cpu"))


def _checked(cluster: Cluster) -> Cluster:
    """A cluster that describes this machine; ValueError, naming the fix, for any other."""
    if torchrun.is_torchrun():
        raise ValueError("under torchrun its processes are the workers: leave out cluster")
    if len(cluster.hosts) > 1:
        raise ValueError(
            f"train starts processes on this machine only, and the cluster has "
            f'{len(cluster.hosts)} hosts: name them with hosts=, as in "a:4, b:4", and join from '
            "the others; or use simulate, or `manyhands train --cluster`, which makes a network"
        )
    (host,) = cluster.hosts
    present = _devices()
    if host.devices != present:
        named, found = (", ".join(some) or "no GPU" for some in (host.devices, present))
        raise ValueError(
            f"host {host.name} of the cluster has {named}, and this machine has {found}: give the "
            "host devices of this machine, all of them; CUDA_VISIBLE_DEVICES hides the others"
        )
    return cluster


def _address(cluster: Cluster | None) -> str | None:
    """The address that a cluster gives for this host, if it is one that others can reach."""
    address = cluster.hosts[0].address if cluster else _LOOPBACK
    return None if address == _LOOPBACK else address


def _taken_folder(plan: _Plan) -> Path:
    with refusing():
        if plan.output is not None and plan.resumed is not None:
            check_over(plan.output)
            set_aside(plan.output, plan.resumed)
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
