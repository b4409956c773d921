"""Whether the workers of a run continue without one that is lost, and take it back."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from manyhands.live.devices import devices
from manyhands.parameters.optional.plateau import has_plateau
from manyhands.script.origin import override
from manyhands.strategies import placement_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from manyhands.job import Job
    from manyhands.live.request import Request
    from manyhands.strategies import Strategy


def rigidity(request: Request) -> str:
    """Why the loss of a worker ends a run of collectives; empty if the others continue."""
    return rigidity_of(
        request.strategy,
        override(request.job, request.overrides),
        request.workers,
        on_cpus={*devices(request.here)} == {"cpu"},
        hosts=1 if request.hosts is None else len(request.hosts.names),
        has_loop=request.origin.loop is not None,
    )


def rigidity_of(
    strategy: Strategy,
    job: Job,
    workers: int,
    *,
    on_cpus: bool = True,
    hosts: int = 1,
    has_loop: bool = False,
) -> str:
    """The same, of a run that is only planned.

    Args:
        strategy: the strategy.
        job: the job.
        workers: number of workers.
        on_cpus: whether no worker has an accelerator.
        hosts: number of hosts.
        has_loop: whether the script has a loop of its own.
    """
    placement = placement_of(strategy)
    if placement is None:
        return "it has no group of workers"
    if workers == 1:
        return "it has one worker"
    if not on_cpus:
        return "collectives on GPUs cannot be interrupted here"
    if placement.binds_again and hosts > 1:
        return "parts of a replica are handed over in memory, on one host"
    if placement.binds_again and has_loop:
        return "a loop may have state of its own, which no other worker hands over"
    return placement.rigidity(job)


def replica_size(request: Request) -> int:
    """Workers that hold parts of one replica, of which others continue without all of them."""
    placement = placement_of(request.strategy)
    return 1 if placement is None else placement.row


def count_replicas(names: Iterable[str], size: int) -> int:
    """How many replicas have all of their workers.

    >>> count_replicas(["worker-0", "worker-2", "worker-3"], 2)
    1
    """
    rows = Counter(int(name.removeprefix("worker-")) // size for name in names)
    return sum(count == size for count in rows.values())


def takes_back(request: Request) -> bool:
    """Whether a worker that leases samples is restarted after it was lost, and joins again."""
    job = override(request.job, request.overrides)
    return is_taken_back(request.strategy, job, request.workers)


def is_taken_back(strategy: Strategy, job: Job, workers: int) -> bool:
    """The same, of a run that is only planned.

    Args:
        strategy: the strategy.
        job: the job.
        workers: number of workers.
    """
    if not strategy.needs(workers).takes_back:
        return False
    return bool(strategy.obstacle("plateau")) or not has_plateau(job)
