"""A run that diverges: the checkpoint that it goes back to, once.

A single absurd gradient, of a damaged sample or a flipped bit, can make a model useless that is
finite still: the loss of a later step is NaN or infinite. So a checkpoint of the global batch
before the one where that was seen may have the damage, and an earlier one is preferred. If the
run diverges again before it has stored a later one, the reason is in the job.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from manyhands.failure import REMEDY
from manyhands.files.checkpoints import CHECKPOINTS, generations, latest
from manyhands.script.origin import override

if TYPE_CHECKING:
    from manyhands.failure import Diverged
    from manyhands.job import Job
    from manyhands.live.agent.recovery.kept_checkpoints import KeptCheckpoints
    from manyhands.live.request import Request

_PLACE = re.compile(r" (?:at sample|after) ([\d,]+)")
"""Where a loss was not finite, in the words of `live/member/divergence.py`."""


def before_divergence(
    request: Request, failure: Diverged, kept: KeptCheckpoints | None
) -> int | None:
    """Samples of the checkpoint that a run which diverged goes back to; None if it ends.

    Args:
        request: the run.
        failure: where it diverged.
        kept: its checkpoints in memory.
    """
    job = override(request.job, request.overrides)
    if request.kept_by_hosts:
        return None
    found = [] if kept is None else [one.manifest.samples for one in kept.all()]
    if job.checkpoint_on_disk is not None:
        found += [int(path.name) for path in generations(request.folder / CHECKPOINTS)]
    sound = sound_until(str(failure), job)
    before = found if sound is None else [samples for samples in found if samples <= sound]
    last = max(before or found, default=-1)
    with contextlib.suppress(ValueError):
        # One on the disk may be damaged.
        if kept is None:
            last = latest(request.folder, last).samples
    return last if last > request.gone_back_to else None


def sound_until(words: str, job: Job) -> int | None:
    """After how many samples a checkpoint is surely older than a divergence; None if unknown.

    Args:
        words: what is said of the divergence.
        job: the job of the run.
    """
    place = _PLACE.search(words)
    if place is None:
        return None
    at = int(place[1].replace(",", ""))
    return at - job.batch_sizes.at(at)


def why_not_back(request: Request) -> str:
    """Why a run that diverged ends, in words that follow those of the failure."""
    if request.gone_back_to >= 0:
        return (
            f"; the run had gone back to the checkpoint after {request.gone_back_to:,} samples, "
            "and diverged again"
        )
    if request.kept_by_hosts:
        return (
            "; checkpoints in the memory of several hosts are not gone back to after a "
            "divergence: train with --checkpoint 10min"
        )
    if override(request.job, request.overrides).checkpoint_on_disk is None:
        return "; with --checkpoint 10min a run that diverges goes back to a checkpoint, once"
    return "; there is no checkpoint to go back to yet"


def without_remedy(failure: Diverged) -> str:
    """What happened, without what to do about it."""
    return str(failure).splitlines()[0].removesuffix(f"; {REMEDY}")
