"""Check of a job against a strategy, before any process is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyhands.job import Job
    from manyhands.strategies.catalog import Strategy


def check_job(strategy: Strategy, job: Job, workers: int) -> None:
    """Refuse a job that a strategy cannot train.

    Args:
        strategy: the strategy.
        job: the job.
        workers: number of workers.

    Raises:
        ValueError: it cannot train this job; the message names the fix.
    """
    if job.objective_names and not strategy.needs(workers).alternates:
        raise ValueError(
            f"{strategy} takes one step of one optimizer per batch, and the job has the "
            f"objectives {', '.join(job.objective_names)}, each with a step of its own optimizer: "
            "use allreduce(), synchronous() or asynchronous()"
        )
    if job.streams and strategy.needs(workers).early is not None:
        raise ValueError(
            f"{strategy} counts the epochs until all workers take part, and a stream has none: "
            "leave early_workers out, or give a dataset with a length"
        )
    strategy.check_job(job, workers)
