"""What the lease service of a run has to know of its job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.live.agent.recovery.last_checkpoint import position
from manyhands.live.assignment import Leasing
from manyhands.script.origin import override

if TYPE_CHECKING:
    from manyhands.live.request import Request


def leasing_of(request: Request) -> Leasing | None:
    """The leases of a run; None if its workers divide each batch themselves."""
    needs = request.strategy.needs(request.workers)
    if not needs.leases:
        return None
    job = override(request.job, request.overrides)
    return Leasing(
        samples=job.epoch_samples,
        global_batch=job.batch_sizes,
        budget=job.budget,
        seconds=job.seconds,
        evaluates=job.validation is not None,
        lockstep=needs.lockstep,
        early=needs.early,
        by_rank=needs.by_rank,
        by_speed=needs.by_speed,
        points=job.evaluation_points,
        evaluation_seconds=job.evaluation_seconds,
        stores=job.checkpoint is not None,
        storing=job.checkpoint_points,
        storing_seconds=job.checkpoint.seconds if job.checkpoint else None,
        since=position(request.resume)[:2],
        rounds=needs.rounds,
        spent=position(request.resume)[2],
    )
