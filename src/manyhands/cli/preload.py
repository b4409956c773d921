"""Preloading: starts the fork server of `manyhands train` before this process loads torch."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from manyhands.cluster import Cluster
from manyhands.live.hosts.slurm import read_hosts
from manyhands.live.processes.fork_server import ahead, environment
from manyhands.live.processes.parent_death import die_with

if TYPE_CHECKING:
    from pathlib import Path


def end_with_parent(parent: int) -> None:
    """Have the kernel send SIGTERM to this run when the comparison that started it ends."""
    die_with(parent, signal.SIGTERM)


def fork_server_ahead(
    script: Path, strategy: str | None, workers: int | None, hosts: str | None
) -> contextlib.AbstractContextManager[None]:
    """Start a fork server, which loads torch while this process does, for the script's run.

    Without `--workers` the number of workers is a guess. A run with another number starts a new
    fork server.
    """
    if not script.is_file() or "WORLD_SIZE" in os.environ:  # nothing to train; under torchrun
        return contextlib.nullcontext()
    cluster = Cluster.local()
    if hosts is not None:
        # Hosts that cannot be read are refused later.
        with contextlib.suppress(ValueError):
            workers = read_hosts(hosts).counts[0][1]
    count = _default(strategy, cluster) if workers is None else workers
    return ahead(environment(cluster.hosts[0].cores, count))


def _default(text: str | None, cluster: Cluster) -> int:
    """How many workers a run under this strategy has by default."""
    count = cluster.default_workers()
    if text is None:
        return count
    # Loaded only where it decides; without torch. A text that is none is refused later.
    from manyhands.strategies import strategy  # noqa: PLC0415

    with contextlib.suppress(ValueError):
        return 1 if strategy(text).needs(count).only_one_worker else count
    return count
