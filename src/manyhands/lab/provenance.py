"""Provenance of a comparison's results: machine, versions, settings, budget."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from manyhands.cluster.text import LATENCY
from manyhands.lab.hosting import hosts_of
from manyhands.lab.machine import this_machine
from manyhands.lab.networks.namespaces import NetworkShape
from manyhands.lab.networks.sites import network_words
from manyhands.lab.reproduction.job_record import JobRecord, describe_job
from manyhands.lab.reproduction.records import record_design, record_script
from manyhands.parameters.weights.loss_weight import own_loss
from manyhands.reports import Comparison
from manyhands.reports.comparison.verdict import verdict_records
from manyhands.reports.formatting import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from manyhands.cluster import Cluster
    from manyhands.job import Job
    from manyhands.lab.design import Design
    from manyhands.reports import RunResult, ScriptRecord


@dataclass(frozen=True)
class Circumstances:
    """What is the same for all runs of a comparison, determined before the first one."""

    created: str
    """When the comparison was first started."""
    job: JobRecord
    source: ScriptRecord | None

    @classmethod
    def of(cls, design: Design, job: Job, folder: Path, created: str | None) -> Circumstances:
        """Those of a comparison in that folder; `created` is its first start, if it is resumed."""
        source = record_script(design.script, folder) if design.script else None
        return cls(created or now(), describe_job(job), source)


def account(
    design: Design,
    job: Job,
    runs: Iterable[RunResult],
    circumstances: Circumstances | None = None,
) -> Comparison:
    """The results of a comparison so far; without circumstances it is started now, here."""
    circumstances = circumstances or Circumstances.of(design, job, Path(), None)
    machine = this_machine()
    in_force = design.budget.of(job)
    if design.virtual is not None and design.virtual.time_only:
        in_force = replace(in_force, target=None)
    made = Comparison(
        manyhands=version("manyhands"),
        python=platform.python_version(),
        torch=version("torch"),
        numpy=version("numpy"),
        os=platform.platform(),
        created=circumstances.created,
        ended=now(),
        script=design.script.path.name if design.script else "",
        source=circumstances.source,
        job=_settings(design, in_force),
        model=circumstances.job.model,
        optimizer=circumstances.job.optimizer,
        data=circumstances.job.data,
        design=record_design(design),
        machine=machine,
        processes_per_core=None if design.virtual else max(design.workers) / (machine.cores or 1),
        paced=design.paced,
        hosts=_hosts(design),
        network=_network(design),
        cluster="" if design.cluster is None else design.cluster.text,
        layout=design.cluster,
        budget=budget_words(in_force),
        budget_seconds=in_force.seconds,
        target=in_force.target,
        margin=design.margin,
        price=design.price,
        strategies=tuple(entrant.label for entrant in design.entrants),
        workers=design.workers,
        repeats=design.repeats,
        sweeps=design.sweeps.texts,
        runs=tuple(map(_without_home, runs)),
    )
    return structs.replace(made, verdicts=verdict_records(made))


def now() -> str:
    """This second, in UTC."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _without_home(run: RunResult) -> RunResult:
    """The run with `~` for the path of the user's home in its error message."""
    home = str(Path.home())
    if len(home) < 2 or home not in run.words:
        return run
    return structs.replace(run, words=run.words.replace(home, "~"))


def surroundings(design: Design) -> dict[str, str]:
    """Facts that must be equal for live runs of one comparison, in addition to its settings."""
    if design.virtual is not None:
        return {}
    machine = this_machine()
    return {
        "processor": machine.cpu,
        "cores": str(machine.cores),
        "torch": version("torch"),
        "manyhands": version("manyhands"),
    }


def budget_words(job: Job) -> str:
    """Description of when a run of the job ends."""
    limits = []
    if job.epochs is not None:
        epochs = f"{job.epochs:g} epoch{plural(f'{job.epochs:g}')}"
        limits.append(f"{epochs} ({round(job.epochs * job.epoch_samples):,} samples)")
    if job.samples is not None:
        limits.append(f"{job.samples:,} samples")
    if job.seconds is not None:
        limits.append(f"{job.seconds:g} s of training")
    most = " or ".join(limits)
    if job.target is None:
        return most
    return f"until {job.target}, at most {most}" if most else f"until {job.target}"


def _settings(design: Design, job: Job) -> dict[str, str]:
    settings = {
        "job": design.script and design.script.job,
        "arguments": design.script and " ".join(design.script.arguments),
        **{name: value for name, value in job.settings.items() if name != "seed"},
        "loss": ", ".join(_name_of(own_loss(one)) for one in job.one_by_one),
        "num_workers": job.num_workers or None,
        "training samples": job.data_words,
        "validation samples": None if job.validation is None else f"{len(job.validation):,}",
        "seeds": ", ".join(str(design.seed + repeat) for repeat in range(design.repeats)),
    }
    if design.virtual is not None:
        settings |= vars(design.virtual)
    settings["lr"] = design.lr
    return {name: str(value) for name, value in settings.items() if value not in (None, "")}


def _name_of(function: object) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _hosts(design: Design) -> int:
    """How many hosts the runs with the most workers have."""
    if design.cluster is not None:
        return len(design.cluster.hosts)
    return sum(_most_hosts(design) or (1,))


def _network(design: Design) -> str:
    """Description of the links between hosts, real or virtual; empty if there is one host."""
    if networks := design.sweeps.values("network") or (design.network,) * bool(design.network):
        return " or ".join(NetworkShape.read(network).words for network in networks)
    if design.cluster is not None and design.virtual is None:
        return network_words(design.cluster)
    if design.cluster is not None:
        return _of_cluster(design.cluster)
    hosts = _most_hosts(design)
    if design.virtual is None or hosts is None:
        return ""
    latency = _values(design, "latency") or f"{LATENCY * 1e3:g}ms"
    of_workers, of_servers = (f"{count} host{plural(str(count))}" for count in hosts)
    return (
        f"virtual links of {_values(design, 'bandwidth')}, {latency} each way, between "
        f"{of_workers} of workers and {of_servers} of servers"
    )


def _most_hosts(design: Design) -> tuple[int, int] | None:
    """Hosts of workers and of servers, in the runs with the most workers."""
    turn = max(design.turns, key=lambda turn: turn.workers)
    return hosts_of(design, max(design.workers), design.virtual and design.virtual.at(turn))


def _values(design: Design, name: str) -> str:
    """The value of a condition, or all that are swept; empty if it was not given."""
    swept = design.sweeps.values(name)
    return " or ".join(swept) if swept else str(getattr(design.virtual, name) or "")


def _of_cluster(cluster: Cluster) -> str:
    """The links of a virtual cluster, in words."""
    names = ", ".join(host.name for host in cluster.hosts)
    of_sites = (link for site in cluster.sites for link in (site.link, site.uplink))
    links = {cluster.link, *(link for _, _, link in cluster.links), *of_sites} - {None}
    if len(cluster.hosts) == 1 or not links:
        return ""
    if cluster.text:
        return f"virtual links of {cluster.text}"
    speeds = sorted(f"{link.bandwidth * 8 / 1e6:g} Mbit/s" for link in links if link)
    return f"virtual links of {' or '.join(speeds)} between the hosts {names}"
