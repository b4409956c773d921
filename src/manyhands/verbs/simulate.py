"""`simulate`: a run on a virtual clock, in one process."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.cluster import Cluster, Link
from manyhands.cluster.text import LATENCY
from manyhands.costs import CodingSpeeds
from manyhands.files.run_folders import check_free, claim, new_folder, release, stamp
from manyhands.live.agent.memory_check import check_hosts
from manyhands.pacing import Pace, words
from manyhands.reports import Run
from manyhands.script import loading as script
from manyhands.script.job_changes import CHANGES, as_text
from manyhands.script.origin import Overrides, override
from manyhands.strategies import strategy as read_strategy
from manyhands.strategies import virtual_form
from manyhands.trace import Setting
from manyhands.units import bandwidth as read_bandwidth
from manyhands.units import seconds as read_seconds
from manyhands.verbs.asked import Asked
from manyhands.verbs.assumed_values import (
    TIMES,
    assumed_settings,
    codecs_of,
    coding_words,
)
from manyhands.verbs.calling import calling
from manyhands.verbs.command import current
from manyhands.verbs.progress import shown
from manyhands.verbs.resuming import find_checkpoint, resume_settings
from manyhands.verbs.virtual_settings import job_settings, place_settings, sourced, versions
from manyhands.virtual import Conditions, Faults, ProcessHosts, Times, simulate_job
from manyhands.virtual import times as read_times
from manyhands.virtual.conditions.simulated_faults import simulated
from manyhands.virtual.simulator.ports import LIKE_TCP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from manyhands.files.checkpoints import Checkpoint
    from manyhands.intervals import Every
    from manyhands.job import Job
    from manyhands.protocols import StrategyProtocol
    from manyhands.strategies import Strategy

_WORKERS = 4
"""Without a cluster."""
_STRATEGY = "asynchronous()"
_PLACINGS = ("apart", "colocated")


def simulate(
    job: Job | Callable[..., Job],
    strategy: str | Strategy | None = None,
    *,
    workers: int | None = None,
    cluster: str | Cluster | None = None,
    times: str | Times | None = None,
    slow: Iterable[str | Pace] | None = None,
    bandwidth: str | float | None = None,
    latency: str | float | None = None,
    cores: int | None = None,
    placing: str | None = None,
    service: str | float | None = None,
    handover: str | float | None = None,
    coding: str | float | None = None,
    detection: str | float | None = None,
    faults: str | Faults | None = None,
    time_only: bool | None = None,
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
    output: str | Path | None = None,
    values: Mapping[str, Any] | None = None,
) -> Run:
    """Train a job under a strategy on a virtual clock: gradients are real, time is not.

    The run is the same to the bit whenever it is repeated on one machine; the digest in its
    summary shows it. The job may be defined anywhere, because no other process needs it.

    Args:
        job: what to train, or a function that returns it, called without arguments or with the
            values of its free parameters (`mh.free`).
        strategy: how to train, as text or as a value: "ssp(staleness=4)" or
            `mh.strategies.ssp(staleness=4)`. Of a placement other than `allreduce()` one worker
            computes the numbers, which are those of `single()`. Default: `asynchronous()`.
        workers: number of workers. Default: 4; with a cluster the number that it has, or else one
            per device, or without devices one per core, at most four or one per host.
        cluster: the sites, hosts and links, as text or as a value: "2 sites of 8 workers, 1gbit
            within, 100mbit and 40ms between". Workers are on its hosts in blocks of ranks, servers
            where it says; islands of `hierarchical()` follow its sites.
        times: seconds that a worker computes on a batch, its part of a global one; under a
            placement that divides the model, on its part of the work. Default: "lognormal(0.1,
            cv=0.3)".
        slow: workers that are slowed on purpose: `["2:4x"]` makes worker 2 compute 4 times as
            long, `["all:1.2x"]` every worker 1.2 times.
        bandwidth: bandwidth of the links between hosts, "100mbit" or bytes per second, which gives
            every worker and every server a host of its own. Default: all are on one host.
        latency: latency of the links, "0.5ms" or seconds. Default: 0.1 ms.
        cores: cores of each host. Default: 1, and on one host one for every worker.
        placing: hosts of the servers, with a bandwidth: "apart" on hosts of their own, as by
            default, or "colocated" with the workers, in turn. The server of an island is on the
            host of the island's first worker.
        service: seconds of a core that a server takes for an update, or "1ms". Default: 0.
        handover: seconds that a message within one host takes beside its copying, or "50us".
            Default: 0.
        coding: bytes of vectors per second at which codecs encode and decode, or "2GB/s"; "free"
            for no time. Default: the speed of each as it was measured on one core of an Intel Xeon
            at 2.5 GHz.
        detection: seconds until the samples of a dead worker are given to another. Default: 5.
        faults: what goes wrong: "crash worker 3 at 2.5 s; stop worker 1 from 4 s to 6 s", or
            "random(every=15, seed=3)"; all forms are in `docs/faults.md`.
        time_only: compute no gradients, parameters and metrics, which takes far less time. All
            virtual times, bytes and stalenesses are those of the run with numbers, unless that run
            ends early because it reaches a target or diverges.
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
        checkpoint: when to store a checkpoint, beside the one at the end: "1000 steps", "50000"
            samples or "10min" of virtual time. Default: the job's; without one, none is stored.
        keep: number of checkpoints that are kept. Default: the job's.
        resume: the folder of a run, live or virtual, that is continued from its last checkpoint:
            its parameters, optimizer state and sample. Limits count from the run's beginning.
        output: folder for the run. Default: a new one in `runs`.
        values: values of the job's free parameters, by name. Default: the start of each.

    Returns:
        The run: its summary, metrics, trace and trained parameters.

    Raises:
        ValueError: an option is out of range, contradicts another, or is not simulated.
        RunFailed: the run cannot continue: all workers are gone.

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
        >>> run = mh.simulate(job, mh.strategies.ssp(staleness=4), workers=2, slow=["1:4x"])
        >>> run.status, run.samples, run.metrics["accuracy"]
        ('finished', 128, 1.0)
    """
    if script.is_loading():
        raise RuntimeError(
            "mh.simulate was called while a worker executed the script: put the call below "
            'if __name__ == "__main__": so that only the first process makes it'
        )
    asked = Asked(
        strategy=strategy,
        workers=workers,
        cluster=cluster,
        times=times,
        slow=None if slow is None else tuple(map(Pace.read, slow)),
        bandwidth=bandwidth,
        latency=latency,
        cores=cores,
        placing=placing,
        service=service,
        handover=handover,
        coding=coding,
        detection=detection,
        faults=faults,
        time_only=time_only,
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
        output=None if output is None else Path(output),
    )
    planned = plan(script.made(job, values), asked, "script")
    planned.check_used()
    run = planned.carry_out()
    current().runs.append(run)
    return run


@dataclass(frozen=True)
class VirtualRunPlan:
    """A virtual run, after what was asked and the defaults were combined."""

    job: Job
    protocol: StrategyProtocol
    places: ProcessHosts
    conditions: Conditions
    faults: Faults
    settings: tuple[Setting, ...]
    asked: Asked
    resumed: Checkpoint | None = None

    def carry_out(self, tell: Callable[[str], None] | None = None) -> Run:
        """Run it to its end; its progress goes to `tell`, or else to the error stream."""
        folder = _take_folder(self.asked.output, self.protocol, len(self.places.workers))
        standing: list[Callable[[], tuple[float, int]]] = []
        if self.job.batch_warning:
            sys.stderr.write(f"manyhands: {self.job.batch_warning}\n")

        def words() -> str:
            if not standing:
                return "starting"
            seconds, samples = standing[0]()
            budget = self.job.budget
            done = (
                f" of {budget:,} samples ({100 * samples / budget:.0f} %)" if budget else " samples"
            )
            return f"{samples:,}{done} · {seconds:,.1f} s of virtual time"

        try:
            with calling(self.job, folder), shown(words, tell):
                simulate_job(
                    self.job,
                    self.protocol,
                    self.places,
                    self.conditions,
                    folder,
                    faults=self.faults,
                    settings=self.settings,
                    begun=standing.append,
                    time_only=bool(self.asked.time_only),
                    resume=self.resumed,
                )
        except BaseException:
            # Empty if the request was refused; any other has a trace.
            release(folder)
            raise
        return Run(folder, model=self.job.model)

    def check_used(self) -> None:
        """Refuse conditions that this run does not have.

        A comparison gives the same conditions to all strategies, and does not call it.

        Raises:
            ValueError: an option would have no effect; the message says why.
        """
        asked, protocol, workers = self.asked, self.protocol, len(self.places.workers)
        hosts = [*self.places.workers, *self.places.servers]
        reasons = {
            "service": (not protocol.count_servers(workers), f"{protocol} has no servers"),
            "placing": (not self.places.servers, f"{protocol} has no servers"),
            "handover": (len(set(hosts)) == len(hosts), "every process is on a host of its own"),
            "coding": (not codecs_of(protocol, workers), f"{protocol} has no codec"),
            "detection": (not self.faults.faults, "nothing fails without faults"),
        }
        for name, (idle, why) in reasons.items():
            if idle and getattr(asked, name) is not None:
                given = getattr(asked, name)
                raise ValueError(
                    f"{name}={given} would have no effect, because {why}: leave it out"
                )

    def replay(self, path: Path) -> list[str]:
        """The command that makes the same run of a script's job, with every setting."""
        settled = replace(
            self.asked,
            strategy=self.protocol,
            workers=len(self.places.workers),
            times=self.conditions.times,
            seed=self.job.seed,
            output=None,
        )
        command = ["manyhands", "simulate", str(path)]
        for field in fields(settled):
            value = getattr(settled, field.name)
            if value in (None, False) or (isinstance(value, Cluster) and not value.text):
                continue
            option = f"--{field.name.replace('_', '-')}"
            for each in value if isinstance(value, tuple) else (value,):
                command += [option] if each is True else [option, str(each)]
        return command


def plan(job: Job, asked: Asked, source: str) -> VirtualRunPlan:
    """The run that was asked for; `source` says where, for the settings."""
    numbers = not asked.time_only
    protocol = virtual_form(read_strategy(asked.strategy or _STRATEGY), numbers=numbers)
    if asked.cluster is not None:
        cluster = Cluster.parse(asked.cluster)
        asked = replace(asked, cluster=cluster)
        protocol = protocol.on_islands(cluster.islands())
    workers = _workers(asked, protocol)
    protocol.check(workers)
    if asked.cluster is not None:
        check_hosts(read_strategy(asked.strategy or _STRATEGY), job, workers, cluster)
    given = Overrides(**{name: getattr(asked, name) for name in CHANGES})
    job, unchecked = override(job, given), ""
    if asked.time_only:
        _check_no_numbers(asked)
        job, unchecked = _without_target(job, asked)
        unchecked += _bounds(protocol, workers)
    _check_measures(job, protocol, workers)
    faults = Faults.read(asked.faults or "[]")
    needs = protocol.needs(workers)
    servers = needs.server_processes
    paces = asked.slow or ()
    for pace in paces:
        pace.check(workers)
    conditions = Conditions(
        times=read_times(asked.times or TIMES),
        slow=paces,
        stretch=asked.stretch or 1.0,
        sharing=LIKE_TCP,
    )
    if asked.service is not None:
        conditions = replace(conditions, service=read_seconds(asked.service))
    if asked.handover is not None:
        conditions = replace(conditions, handover=read_seconds(asked.handover))
    speeds = CodingSpeeds.read(asked.coding)
    if not speeds.are_free:
        conditions = replace(conditions, coding=speeds)
    if asked.detection is not None:
        conditions = replace(conditions, detection=read_seconds(asked.detection))
    places = _places(asked, protocol, workers, servers)
    simulated(faults, places, peers=needs.peer_servers or needs.collectives)
    values = {
        "strategy": str(protocol),
        "workers": str(workers),
        "times": str(conditions.times),
        "lr": asked.lr,
        "stretch": None if asked.stretch is None else f"times × {asked.stretch:g}",
        "slow": words(paces) or None,
        "faults": str(faults) if faults.faults else None,
        "service": f"{conditions.service:g} s" if conditions.service else None,
        "handover": f"{conditions.handover:g} s" if conditions.handover else None,
        "coding": coding_words(protocol, workers, speeds),
        "detection": f"{conditions.detection:g} s" if asked.detection is not None else None,
        "time_only": f"no numbers{unchecked}" if asked.time_only else None,
    }
    resumed = None if asked.resume is None else find_checkpoint(asked.resume, None, job)
    settings = (
        *sourced(values, asked, source),
        *assumed_settings(values, asked, places, servers),
        *(
            Setting(one.name, one.value, source)
            for one in resume_settings(resumed, job, protocol, workers)
        ),
        *job_settings(job, asked, source),
        *place_settings(places, asked, source),
        *versions(),
    )
    if asked.output is not None:
        check_free(asked.output)
    return VirtualRunPlan(job, protocol, places, conditions, faults, settings, asked, resumed)


def _check_no_numbers(asked: Asked) -> None:
    """Refuse what needs parameters, of which there are none."""
    for name in ("resume", "checkpoint"):
        if getattr(asked, name) is not None:
            raise ValueError(
                "a time-only run has no parameters, so it can neither store a checkpoint nor "
                f"continue from one: leave out time_only, or {name}"
            )
    for name in ("lr", "keep"):
        if getattr(asked, name) is not None:
            raise ValueError(
                f"a time-only run has no parameters, and {name}={getattr(asked, name)} would have "
                f"no effect: leave out time_only, or {name}"
            )


def _bounds(protocol: StrategyProtocol, workers: int) -> str:
    """Words about codecs whose sizes depend on numbers."""
    named = [str(codec) for codec in codecs_of(protocol, workers) if not codec.fixed_size]
    return f"; bytes of {', '.join(named)} at most" if named else ""


def _check_measures(job: Job, protocol: StrategyProtocol, workers: int) -> None:
    if "spread" in job.measures and protocol.needs(workers).shared_memory:
        raise ValueError(
            f"under {protocol} all workers share one copy of the parameters, so there is no "
            "distance between replicas: leave spread out of the measures"
        )


def _without_target(job: Job, asked: Asked) -> tuple[Job, str]:
    """The job without a target, which a run without numbers cannot reach, and words about it."""
    if job.target is None:
        return job, ""
    limits = (job.epochs, job.samples, job.seconds)
    if asked.target is not None or all(limit is None for limit in limits):
        raise ValueError(
            f"a time-only run computes no metrics, so it cannot reach the target {job.target!r}: "
            "leave the target out and give epochs, samples or seconds"
        )
    return replace(job, target=None), f", the target {job.target} is not checked"


def _workers(asked: Asked, protocol: StrategyProtocol) -> int:
    if asked.workers is None and protocol.needs(1).only_one_worker:
        return 1
    if asked.cluster is None:
        return _WORKERS if asked.workers is None else asked.workers
    cluster = Cluster.parse(asked.cluster)
    if asked.workers is None:
        return cluster.default_workers()
    cluster.check_workers(asked.workers)
    return asked.workers


def _places(asked: Asked, protocol: StrategyProtocol, workers: int, servers: int) -> ProcessHosts:
    if asked.placing not in (None, *_PLACINGS):
        raise ValueError(f"placing is {' or '.join(_PLACINGS)}, not {asked.placing!r}")
    if asked.cluster is not None:
        for name in ("bandwidth", "latency", "cores", "placing"):
            if getattr(asked, name) is not None:
                raise ValueError(f"{name} is given twice: leave it out, the cluster determines it")
        cluster = Cluster.parse(asked.cluster)
        protocol.check_places([host.name for host in cluster.hosts], ())
        return ProcessHosts.spread(cluster, workers, servers, protocol.groups(workers))
    if asked.placing == "colocated" and asked.bandwidth is None:
        raise ValueError("servers are beside the workers on one host: give links a bandwidth")
    if asked.bandwidth is None:
        if asked.latency is not None:
            raise ValueError("latency is that of links: give their bandwidth too, as in '1gbit'")
        return ProcessHosts.one_host(workers, servers, asked.cores)
    latency = LATENCY if asked.latency is None else read_seconds(asked.latency)
    link = Link(read_bandwidth(asked.bandwidth), latency)
    groups = protocol.groups(workers)
    if asked.placing == "colocated":
        return ProcessHosts.colocated(workers, servers, link, asked.cores or 1, groups)
    apart = servers - sum(len(numbers) for ranks, numbers in groups if ranks)
    hosts = asked.hosts or (workers, apart)
    return ProcessHosts.in_blocks(workers, servers, hosts, link, asked.cores, groups)


def _take_folder(asked: Path | None, protocol: StrategyProtocol, workers: int) -> Path:
    """Create a folder that holds no run yet; one that the user named is refused if it does."""
    if asked is None:
        name = str(protocol).partition("(")[0]
        asked = new_folder(Path("runs") / f"{stamp()}-{name}-{workers}-virtual")
    if not claim(asked):
        check_free(asked)
    return asked
