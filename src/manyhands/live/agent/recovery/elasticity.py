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

    from manyhands.live.request import Request


def rigidity(request: Request) -> str:
    """Why the loss of a worker ends a run of collectives; empty if the others continue."""
    placement = placement_of(request.strategy)
    if placement is None:
        return "it has no group of workers"
    if request.workers == 1:
        return "it has one worker"
    if {*devices(request.here)} != {"cpu"}:
        return "collectives on GPUs cannot be interrupted here"
    if placement.binds_again and request.hosts is not None and len(request.hosts.names) > 1:
        return "parts of a replica are handed over in memory, on one host"
    if placement.binds_again and request.origin.loop is not None:
        return "a loop may have state of its own, which no other worker hands over"
    return placement.rigidity(override(request.job, request.overrides))


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
    strategy, job = request.strategy, override(request.job, request.overrides)
    if not strategy.needs(request.workers).takes_back:
        return False
    return bool(strategy.obstacle("plateau")) or not has_plateau(job)
