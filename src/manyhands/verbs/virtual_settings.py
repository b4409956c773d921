"""The settings of a virtual run, each with where it comes from."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from manyhands.cluster.servers import servers_words
from manyhands.trace import Setting
from manyhands.verbs.assumed_values import source_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.job import Job
    from manyhands.verbs.asked import Asked
    from manyhands.virtual import ProcessHosts


def sourced(values: dict[str, str | None], asked: Asked, source: str) -> Iterator[Setting]:
    """Those of the values that are set."""
    for name, value in values.items():
        if value:
            told = getattr(asked, name, None) is not None
            yield Setting(name, value, source if told else source_of(name, asked))


def job_settings(job: Job, asked: Asked, source: str) -> Iterator[Setting]:
    """The job's limits and seed that are in force."""
    for name, value in job.settings.items():
        told = getattr(asked, name, None) is not None
        yield Setting(name, value, source if told else "script")


def place_settings(places: ProcessHosts, asked: Asked, source: str) -> Iterator[Setting]:
    """The cluster and the places of servers."""
    hosts, link = places.cluster.hosts, places.cluster.link
    most = max(host.cores for host in hosts)
    values = {
        "cluster": places.cluster.text if asked.cluster is not None else None,
        "hosts": str(len(hosts)),
        "cores": f"{most} per host" if len(hosts) > 1 else str(most),
        "bandwidth": f"{link.bandwidth * 8 / 1e6:g} Mbit/s" if link else None,
        "latency": f"{link.latency * 1e3:g} ms" if link else None,
        "servers on": servers_words(places.servers, places.workers),
    }
    yield from sourced(values, asked, source)


def versions() -> Iterator[Setting]:
    """Versions of the packages on which the numbers depend."""
    for package in ("torch", "manyhands"):
        yield Setting(package, version(package), "default")
