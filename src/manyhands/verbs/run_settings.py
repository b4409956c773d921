"""Settings of a live run that its summary shows: where it is, and what is in force of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.live.request import RunSetting
from manyhands.script.origin import Overrides, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.cluster import Cluster
    from manyhands.job import Job
    from manyhands.live.hosts.host_list import Hosts
    from manyhands.verbs.command import Command


def place_settings(
    hosts: Hosts | None, cluster: Cluster, command: Command, servers: tuple[str, str] = ("", "")
) -> Iterator[RunSetting]:
    """Where the run is; `servers` says in words where they are, and where that comes from."""
    if hosts is None:
        yield RunSetting("hosts", str(len(cluster.hosts)), "default")
        return
    source = "command line" if command.hosts else "script"
    yield RunSetting("hosts", str(len(hosts.names)), source)
    yield RunSetting("workers by host", str(hosts), source)
    if command.network is not None:
        yield RunSetting("network", command.network, "command line")
    if servers[0]:
        yield RunSetting("servers on", *servers)
    if command.cluster is not None:
        yield RunSetting("cluster", command.cluster, "command line")


def job_settings(job: Job, command: Command, overrides: Overrides) -> Iterator[RunSetting]:
    """The job's limits and seed that are in force."""
    settings = override(job, overrides).settings
    if overrides.lr is not None:
        settings |= {"lr": overrides.lr}
    for name, value in settings.items():
        told = getattr(command, name, None) is not None
        yield RunSetting(name, value, "command line" if told else "script")
