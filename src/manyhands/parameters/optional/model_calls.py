"""Calls of the model: whether all workers make equally many, where each is a collective.

An objective may call the model once for every sample of a batch. Workers whose parts of a batch
have different sizes then call it differently often. Where a call is a collective, as the gathering
of parameters is, one of them waits for a call that no other makes, for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from manyhands.data.stream import is_stream
from manyhands.data.taking import preview
from manyhands.failure import Refused
from manyhands.parameters.gradients import compute_loss
from manyhands.sampling.division import part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from manyhands.job import Job


def check_calls(job: Job, model: nn.Module, parts: int, strategy: object) -> None:
    """Refuse a job whose workers would call the model differently often.

    Args:
        job: the job.
        model: a model of the job's; its random state is the caller's.
        parts: parts of a global batch whose workers must call it equally often.
        strategy: the strategy that requires it.

    Raises:
        Refused: a part of three samples takes more calls than one of two, and the parts of a
            global batch differ.
    """
    if job.objective is None or parts < 2:
        return
    uneven = next(_uneven(job, parts), None)
    if uneven is None:
        return
    try:
        # Not of one sample, of which batch norm cannot compute statistics.
        two, three = (_calls(job, model, samples) for samples in (2, 3))
    except Exception:  # noqa: BLE001 - what raises here is shown where the whole batch is tried
        return
    if two != three:
        raise Refused(
            f"the objective calls the model {two} times for two samples and {three} times for "
            f"three, {uneven}, and under {strategy} all workers must call it equally often: call "
            "it once for a batch, choose a global batch and a number of samples that all workers "
            "divide evenly, or use allreduce()"
        )


def _uneven(job: Job, parts: int) -> Iterator[str]:
    """Global batches whose parts differ, in words."""
    sizes = [size for _, size in job.batch_sizes.changes]
    for size in sizes:
        if _differ(size, parts):
            yield f"a global batch of {size} samples has {parts} parts of different sizes"
    if is_stream(job.data):
        yield "the last batch of a stream may have parts of different sizes"
        return
    if not job.epoch_samples:
        return  # without data there is no batch, which is refused elsewhere
    for size in sizes:
        ends = {"an epoch": job.epoch_samples, "the run": (job.budget or 0) % job.epoch_samples}
        for end, samples in ends.items():
            if _differ(samples % size, parts):
                words = f"the last {samples % size} samples of {end}"
                yield f"{words} have {parts} parts of different sizes"
    if job.validation is not None and _differ(len(job.validation), parts):
        words = f"the {len(job.validation)} samples of validation"
        yield f"{words} have {parts} parts of different sizes"


def _differ(total: int, parts: int) -> bool:
    # A worker without samples computes on the first one's, so it calls the model as often.
    sizes = {one.stop - one.start for one in (part(total, rank, parts) for rank in range(parts))}
    return len(sizes - {0}) > 1


def _calls(job: Job, model: nn.Module, samples: int) -> int:
    """How often the objectives call the model for a batch of so many samples."""
    count = 0

    def counted(*_: Any) -> None:
        nonlocal count
        count += 1

    batch = preview(job.data, job.collate_fn, samples)
    hook = model.register_forward_pre_hook(counted)
    try:
        with torch.no_grad():
            for one in job.one_by_one:
                compute_loss(one, model, batch, None)
    finally:
        hook.remove()
    return count
