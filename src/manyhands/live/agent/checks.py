"""Checks of the agent: before any process is started, and when all workers have ended."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from manyhands.failure import RunFailed, refusing
from manyhands.faults import FullDisk
from manyhands.files.disk_space import is_full
from manyhands.files.tensor_format import MODEL
from manyhands.live.agent.faults.full_disk import check_disk
from manyhands.live.agent.memory_check import estimate
from manyhands.live.agent.recovery.kept_checkpoints import check_kept
from manyhands.live.devices import devices
from manyhands.live.processes.available_memory import available
from manyhands.live.processes.descriptors import check_descriptors
from manyhands.live.processes.fork_server import can_fork
from manyhands.live.request import RunSetting
from manyhands.parameters.initial.start import start_digest
from manyhands.parameters.optional.checks import check_optional
from manyhands.script.origin import override
from manyhands.strategies import check_job
from manyhands.transport.collectives import LOOPBACK
from manyhands.transport.interfaces import check_own_address

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from manyhands.live.request import Request


def check_request(request: Request) -> str:
    """Check that this host and this strategy can execute the run.

    Returns:
        A warning if the run nearly fills the host's memory; otherwise an empty string.

    Raises:
        Refused: they cannot; the message states why.
    """
    strategy = request.strategy
    job, places = override(request.job, request.overrides), devices(request.here)
    with refusing():
        strategy.check_places(request.hosts.names if request.hosts else (request.host,), places)
        check_job(strategy, job, request.workers)
        check_kept(request)
        if strategy.needs(request.workers).collectives and request.hosts is None:
            check_own_address(LOOPBACK)
        check_optional(strategy, job, places)
        if any(isinstance(fault, FullDisk) for fault in request.drawn_faults()):
            check_disk(request.folder)
        check_descriptors(request.workers, strategy.needs(request.workers).servers)
        about = (job, strategy, request.workers, request.here, places)
        return estimate(*about, forks=can_fork(), serving=request.serving).check(*available())


def pin_start(request: Request) -> Request:
    """The request with the digest of the weights that its job starts from, if there are any.

    Raises:
        Refused: there are no such weights.
    """
    with refusing():
        digest = start_digest(request.job)
    if digest is None:
        return request
    return replace(
        request,
        overrides=replace(request.overrides, start_digest=digest),
        settings=(*request.settings, RunSetting("start_sha256", digest, "script")),
    )


@contextlib.contextmanager
def explain_full_disk(folder: Path) -> Iterator[None]:
    """Raise RunFailed, with the folder and the fix, if the disk is full."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        words = f"no space left on the disk of {folder}; free some space, or choose --output"
        raise RunFailed(words) from error


def check_stored(folder: Path) -> None:
    """Raise RunFailed if the run's model was not stored."""
    if not (folder / MODEL).exists():
        raise RunFailed(
            f"all workers have ended, but {folder / MODEL} does not exist: no worker stored it. "
            f"See their logs in {folder / 'logs'}"
        )


def warnings_before(request: Request, *, on_cpus: bool) -> list[str]:
    """What the user should know before the run, and may want."""
    crowd = crowded(request.here, request.cluster.hosts[0].cores) if on_cpus else ""
    return [*filter(None, [override(request.job, request.overrides).batch_warning, crowd])]


def crowded(workers: int, cores: int) -> str:
    """A warning if there are many more workers than cores; otherwise an empty string.

    >>> crowded(100, 2)
    '100 workers share 2 cores: each computes about 50 times as long as on a core of its own'
    >>> crowded(4, 2)
    ''
    """
    if workers <= 2 * cores:
        return ""
    shared = f"{cores} core{'s' if cores > 1 else ''}"
    times = workers / cores
    return (
        f"{workers} workers share {shared}: each computes about {times:.0f} times as long as on a "
        "core of its own"
    )
