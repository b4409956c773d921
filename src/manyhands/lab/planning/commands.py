"""Commands of planned strategies: each trains what was predicted, where it was predicted.

On a cluster that has a text, the command makes its network on this machine, if that is possible.
Other hosts, those of a calibration among them, it names with their workers.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.lab.networks.sites import check_live
from manyhands.lab.planning.candidates import hosts_of, paces_on
from manyhands.live.hosts.host_list import Hosts
from manyhands.strategies import protocol_of
from manyhands.strategies import strategy as read_strategy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from manyhands.cluster import Cluster
    from manyhands.lab.planning.planned import PlannedStrategy
    from manyhands.lab.planning.ranking import Plan


@dataclass(frozen=True)
class PlannedJob:
    """What the commands of a plan are about, beside what the plan says itself."""

    script: str
    arguments: Sequence[str] = ()
    job: str | None = None
    """The job's name in the script; None if it has only one."""
    global_batch: int | None = None
    """Samples of a global batch in place of the job's own."""


def command_of(plan: Plan, one: PlannedStrategy, about: PlannedJob) -> str:
    """The command that trains what was predicted.

    Args:
        plan: the plan.
        one: a strategy of its ranking.
        about: the script, and what was asked of the plan beside the cluster.
    """
    strategy, where = one.strategy, list[str]()
    if plan.where is not None:
        part = hosts_of(plan.where, one.workers, one.hosts)
        where = [*_where(part, one)]
        protocol = protocol_of(read_strategy(strategy))
        if protocol is not None and "--hosts" in where:
            # A list of hosts says nothing of sites.
            strategy = str(protocol.on_islands(part.islands()))
    words = ["manyhands", "train", about.script]
    words += ["--job", about.job] if about.job else []
    words += ["--strategy", strategy, *(where or ["--workers", str(one.workers)])]
    if about.global_batch is not None:
        words += ["--global-batch", str(about.global_batch)]
    for pace in plan.slow if plan.where is None else paces_on(plan.where, one.hosts, plan.slow):
        if pace.worker is None or pace.worker < one.workers:
            words += ["--slow", str(pace)]
    goes_back = one.goodput is not None and one.goodput.effect == "goes back"
    if plan.checkpoint is not None and goes_back:
        words += ["--checkpoint", plan.checkpoint]
    if plan.target is not None:
        words += ["--target", plan.target]
    return shlex.join([*words, *(["--", *about.arguments] if about.arguments else [])])


def _where(cluster: Cluster, one: PlannedStrategy) -> Iterator[str]:
    """The options of the hosts that the strategy runs on; none for one host."""
    servers = read_strategy(one.strategy).needs(one.workers).server_processes
    busy = [host for host in cluster.hosts if host.workers or servers]
    if len(busy) == 1 and not one.hosts:
        return
    if _is_live(cluster):
        yield from ("--cluster", cluster.text)
        return
    yield from ("--hosts", Hosts(tuple((host.name, host.workers or 0) for host in busy)).short)
    if servers and cluster.servers:
        yield from ("--servers-on", ", ".join(cluster.servers))


def _is_live(cluster: Cluster) -> bool:
    """Whether a network of namespaces can be made of it."""
    try:
        check_live(cluster)
    except ValueError:
        return False
    return True
