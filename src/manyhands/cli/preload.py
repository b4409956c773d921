"""What `manyhands train` starts before it loads torch itself."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from manyhands.cluster import Cluster
from manyhands.live.processes.fork_server import ahead, environment
from manyhands.live.processes.parent_death import die_with

if TYPE_CHECKING:
    from pathlib import Path


def obey(parent: int) -> None:
    """End this run, politely, when the process that started it is gone: a comparison's."""
    die_with(parent, signal.SIGTERM)


def nursery_ahead(
    script: Path, strategy: str | None, workers: int | None, hosts: str | None
) -> contextlib.AbstractContextManager[None]:
    """A nursery that loads torch while this process does, for the run that the script will make.

    How many workers there will be is a guess where the command line does not say. A run for which
    it was wrong starts a nursery of its own.
    """
    if not script.is_file() or "WORLD_SIZE" in os.environ:  # nothing to train; torchrun's workers
        return contextlib.nullcontext()
    cluster = Cluster.local()
    here = (hosts or "").split(",")[0].rpartition(":")[2].strip()
    workers = int(here) if here.isdecimal() else workers
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
