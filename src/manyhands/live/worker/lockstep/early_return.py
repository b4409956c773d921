"""A training loop of the user's that returned before the end of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.failure import RunFailed

if TYPE_CHECKING:
    from manyhands.job import Job
    from manyhands.sampling.permutation import Share


def early_return(job: Job, share: Share | None, stepped: int) -> str:
    """How far the loop came, in words.

    Args:
        job: the job.
        share: this worker's part of the batch that it received last; None if it received none.
        stepped: the number of the last step; -1 if there was none.

    Raises:
        RunFailed: it has trained nothing.
    """
    total = "" if job.budget is None or job.streams else f" of {job.budget:,}"
    if share is None or stepped < 0:
        raise RunFailed(
            f"the training loop returned without a step: 0{total} samples are trained. Iterate "
            "over trainer.batches() to its end, and call trainer.step(batch) for every batch"
        )
    trained = share.dealt + (share.total if stepped == share.step else 0)
    return f"the training loop returned after {trained:,}{total} samples"
