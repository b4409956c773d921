"""A run over a network of namespaces on this machine: the hosts of a declared cluster, or one each.

The hosts are network namespaces. The first one starts the run and the others join it, as separate
machines would; they are started together, so that all load at the same time.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.failure import RunFailed
from manyhands.lab.launcher import end
from manyhands.lab.networks.namespaces import NamespaceHost, NetworkShape, network
from manyhands.lab.networks.sites import cluster_network, network_words
from manyhands.live.hosts.host_links import VARIABLE, write_links
from manyhands.live.hosts.host_list import Hosts
from manyhands.live.hosts.invitation import LINES
from manyhands.live.processes.parent_death import signals_raise
from manyhands.transport.security import JobKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from manyhands.cluster import Cluster

_POLL = 0.1
_PORT = 40001
"""Port at which the first host listens: in a new namespace every port is free."""
_PARTING = 5.0
"""Seconds in which joined hosts must have left when the run is over."""


def train_spread(arguments: Sequence[str], shape: NetworkShape, workers: int, output: Path) -> int:
    """Run `manyhands train` with these arguments, each worker behind a link; return its exit code.

    Args:
        arguments: the script and its options, except --workers, --hosts and --output.
        shape: the network.
        workers: number of workers.
        output: the run's folder.

    Raises:
        NotPermitted: this machine does not allow network namespaces.
        RunFailed: a host could not join.
    """
    counts = {"servers": 0} if shape.apart else {}
    counts |= {f"w{number}": 1 for number in range(workers)}
    made = network(len(counts), shape.rate, shape.latency)
    lab = ("--inside", shape.words, "--link", str(shape.rate))
    return _train(arguments, counts, made, lab, output)


def hosts_of(cluster: Cluster) -> Hosts:
    """The hosts of a run on a declared cluster."""
    return Hosts(tuple((host.name, host.workers or 0) for host in cluster.hosts))


def train_on_cluster(arguments: Sequence[str], cluster: Cluster, output: Path) -> int:
    """Run `manyhands train` with these arguments on the hosts of a cluster; return its exit code.

    Args:
        arguments: the script and its options, except --workers, --hosts and --output.
        cluster: the cluster, which has a text and several hosts.
        output: the run's folder.

    Raises:
        NotPermitted: this machine does not allow network namespaces.
        RunFailed: a host could not join.
    """
    counts = dict(hosts_of(cluster).counts)
    lab = ("--inside", network_words(cluster), "--cluster", cluster.text)
    return _train(arguments, counts, cluster_network(cluster), lab, output)


def _train(
    arguments: Sequence[str],
    counts: dict[str, int],
    made: AbstractContextManager[list[NamespaceHost]],
    lab: Sequence[str],
    output: Path,
) -> int:
    """Start the run on the first host of a network, and join it from the others."""
    hosts = ", ".join(f"{name}:{count}" for name, count in counts.items())
    with (
        signals_raise(),
        tempfile.TemporaryDirectory(prefix="manyhands-") as private,
        made as places,
        contextlib.ExitStack() as stack,
    ):
        here, *others = places
        key, place = Path(private) / "key", f"{here.address}:{_PORT}"
        JobKey.new().write(key)
        common = ("--key-file", str(key), "--parent", str(os.getpid()))
        options = ("--hosts", hosts, "--listen", place, "--output", str(output))
        links = [place.link(name) for name, place in zip(counts, places, strict=True)]
        wired = {VARIABLE: write_links(links)}
        first = _start(here, ["train", *options, *common, *lab, *arguments], None, wired)
        stack.callback(end, first)
        joiners: list[_Joiner] = []

        def join(folder: Path) -> None:
            for name, there in zip(list(counts)[1:], others, strict=True):
                part = folder / "hosts" / name
                part.mkdir(parents=True, exist_ok=True)
                words = ["join", place, *common, "--as", name, "--output", str(part), arguments[0]]
                process = _start(there, words, part / "join.txt")
                stack.callback(end, process)
                joiners.append(_Joiner(name, process, part / "join.txt"))

        join(output)
        return _follow(first, joiners, output, join)


def _follow(
    first: subprocess.Popen[bytes],
    joiners: list[_Joiner],
    output: Path,
    join: Callable[[Path], None],
) -> int:
    """Wait for the end, and join further runs of the script; return the first host's exit code."""
    joined = {output}
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return first.wait(_POLL)
            _check(joiners)
            for lines in output.parent.glob(f"{output.name}-*/{LINES}"):
                if lines.parent not in joined:
                    joined.add(lines.parent)
                    join(lines.parent)
    except BaseException:
        # It notifies the other hosts, which then report why they end.
        end(first)
        raise
    finally:
        for joiner in joiners:
            with contextlib.suppress(subprocess.TimeoutExpired):
                joiner.process.wait(_PARTING)


@dataclass(frozen=True)
class _Joiner:
    """A host that joins the run."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


def _check(joiners: list[_Joiner]) -> None:
    """Raise RunFailed if a host was not admitted: the first host would wait for it forever."""
    for joiner in joiners:
        if joiner.process.poll():
            words = joiner.log.read_text(encoding="utf-8", errors="replace").strip()
            if "joined" not in words:
                raise RunFailed(f"host {joiner.name} could not join: {words}")


def _start(
    place: NamespaceHost,
    words: list[str],
    log: Path | None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a `manyhands` command on a host, with further environment variables."""
    with contextlib.ExitStack() as stack:
        stream = None if log is None else stack.enter_context(log.open("wb"))
        return subprocess.Popen(  # noqa: S603 - our own command
            place.inside(sys.executable, "-m", "manyhands", *words),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            # There is no name resolution in a namespace, about which torch would warn.
            env={**os.environ, **(variables or {}), "TORCH_CPP_LOG_LEVEL": "ERROR"},
            start_new_session=True,
        )
