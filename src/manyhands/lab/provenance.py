"""What a comparison's results say beside its runs: machine, versions, settings, budget."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

from manyhands.lab.hosting import hosts_of
from manyhands.lab.machine import this_machine
from manyhands.lab.networks.namespaces import NetworkShape
from manyhands.reports import Comparison
from manyhands.reports.formatting import plural
from manyhands.verbs.simulate import LATENCY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from manyhands.cluster import Cluster
    from manyhands.job import Job
    from manyhands.lab.design import Design
    from manyhands.reports import RunResult


def account(
    design: Design, job: Job, runs: Iterable[RunResult], created: str | None = None
) -> Comparison:
    """The results of a comparison so far; `created` is when it was begun, if not just now."""
    machine = this_machine()
    in_force = design.budget.of(job)
    return Comparison(
        manyhands=version("manyhands"),
        python=platform.python_version(),
        torch=version("torch"),
        created=created or f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        script=design.script.path.name if design.script else "",
        job=_settings(design, in_force),
        machine=machine,
        processes_per_core=None if design.virtual else max(design.workers) / (machine.cores or 1),
        paced=design.paced,
        hosts=_hosts(design),
        network=_network(design),
        budget=budget_words(in_force),
        budget_seconds=in_force.seconds,
        target=in_force.target,
        margin=design.margin,
        price=design.price,
        strategies=tuple(entrant.label for entrant in design.entrants),
        workers=design.workers,
        repeats=design.repeats,
        runs=tuple(runs),
    )


def surroundings(design: Design) -> dict[str, str]:
    """What live runs of one comparison must have in common, beside its settings."""
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
    """When a run of the job ends, in words."""
    limits = []
    if job.epochs is not None:
        epochs = f"{job.epochs:g} epoch{plural(f'{job.epochs:g}')}"
        limits.append(f"{epochs} ({round(job.epochs * len(job.data)):,} samples)")
    if job.samples is not None:
        limits.append(f"{job.samples:,} samples")
    if job.seconds is not None:
        limits.append(f"{job.seconds:g} s of training")
    most = " or ".join(limits)
    if job.target is None:
        return most
    return f"until {job.target}, at most {most}" if most else f"until {job.target}"


def _settings(design: Design, job: Job) -> dict[str, str]:
    told = {
        "job": design.script and design.script.job,
        "arguments": design.script and " ".join(design.script.arguments),
        **{name: value for name, value in job.settings.items() if name != "seed"},
        "training samples": f"{len(job.data):,}",
        "validation samples": None if job.validation is None else f"{len(job.validation):,}",
        "seeds": ", ".join(str(design.seed + repeat) for repeat in range(design.repeats)),
    }
    if design.virtual is not None:
        told |= vars(design.virtual) | {"cluster": None}
    return {name: str(value) for name, value in told.items() if value not in (None, "")}


def _hosts(design: Design) -> int:
    """How many hosts the runs with the most workers have."""
    if design.virtual is not None and design.virtual.cluster is not None:
        return len(design.virtual.cluster.hosts)
    return sum(hosts_of(design, max(design.workers)) or (1,))


def _network(design: Design) -> str:
    """The links between hosts, real or virtual; nothing where all share one host."""
    if design.network:
        return NetworkShape.read(design.network).words
    if design.virtual is not None and design.virtual.cluster is not None:
        return _of_cluster(design.virtual.cluster)
    hosts = hosts_of(design, max(design.workers))
    if design.virtual is None or hosts is None:
        return ""
    latency = design.virtual.latency or f"{LATENCY * 1e3:g}ms"
    of_workers, of_servers = (f"{count} host{plural(str(count))}" for count in hosts)
    return (
        f"virtual links of {design.virtual.bandwidth}, {latency} each way, between {of_workers} of "
        f"workers and {of_servers} of servers"
    )


def _of_cluster(cluster: Cluster) -> str:
    """The links of a virtual cluster, in words."""
    names = ", ".join(host.name for host in cluster.hosts)
    links = {cluster.link, *(link for _, _, link in cluster.links)} - {None}
    if len(cluster.hosts) == 1 or not links:
        return ""
    speeds = sorted(f"{link.bandwidth * 8 / 1e6:g} Mbit/s" for link in links if link)
    return f"virtual links of {' or '.join(speeds)} between the hosts {names}"
