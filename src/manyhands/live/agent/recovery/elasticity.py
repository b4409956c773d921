"""Whether the workers of a run continue without one that is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.live.devices import devices
from manyhands.script.origin import override
from manyhands.strategies import placement_of

if TYPE_CHECKING:
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
    return placement.rigidity(override(request.job, request.overrides))
