"""A worker's run under a placement whose workers can be replaced."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.live.devices import take
from manyhands.live.hosts.host_list import Hosts
from manyhands.live.member.group_notices import RowLeftOut, RunOver
from manyhands.live.worker.lockstep.elastic_trainer import ElasticTrainer
from manyhands.live.worker.lockstep.group_formation import GroupFormation
from manyhands.live.worker.lockstep.row_trainer import RowTrainer
from manyhands.live.worker.slowdown import Slowdown
from manyhands.pacing import factor
from manyhands.strategies import placement_of, strategy
from manyhands.transport.collectives import connect_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.job import Job
    from manyhands.live.assignment import Assignment
    from manyhands.live.member.group_notices import GroupNotices
    from manyhands.live.member.progress import Progress
    from manyhands.live.worker.checkpoints.storing_plan import StoringPlan
    from manyhands.live.worker.trainer import Trainer
    from manyhands.trace import Recorder


def run_elastic(
    assignment: Assignment,
    rank: int,
    job: Job,
    loop: Callable[[Trainer], object],
    store: Callable[[Trainer, Path, Recorder], object],
    recorder: Recorder,
    progress: Progress,
    notices: GroupNotices,
    storing: StoringPlan,
) -> None:
    """Train as one of the workers that are present; end if they have finished without it.

    Args:
        assignment: the run.
        rank: this worker's rank.
        job: the job.
        loop: the training loop.
        store: stores the model; see `ElasticTrainer.store`.
        recorder: this worker's trace.
        progress: what heartbeats report.
        notices: the coordinator's announcements about groups.
        storing: where checkpoints are stored, and from which one the run continues.
    """
    placement = placement_of(strategy(assignment.strategy))
    if placement is None:
        raise TypeError(f"{assignment.strategy} is not a placement")
    begun = time.monotonic()
    device = take(assignment.device(rank))
    connected = connect_store(assignment.store_address, assignment.store_port)
    formation = GroupFormation(connected, rank, notices, device, assignment.address)
    kind = RowTrainer if placement.binds_again else ElasticTrainer
    again = False
    while True:
        trainer = kind(
            job,
            placement,
            formation,
            assignment.workers,
            device,
            recorder,
            progress,
            time.monotonic,
            Slowdown(factor(assignment.slow, rank)),
            storing,
        )
        if isinstance(trainer, RowTrainer):
            trainer.again = again
        try:
            trainer.join()
            if assignment.overrides.timed_links:
                trainer.time_links(Hosts(assignment.hosts))
            recorder.span("start", begun, time.monotonic() - begun, 0)
            recorder.event("training")
            loop(trainer)
            recorder.event("trained")
            store(trainer, Path(assignment.folder), recorder)
        except RowLeftOut:
            # Its replica is not complete any more: it waits for it, as a new worker does.
            begun, again = time.monotonic(), True
            trainer.abandon()
            continue
        except RunOver:
            # The others have completed the last operation, and this one was waiting for it.
            progress.phase = "finish"
        break
    trainer.close()
