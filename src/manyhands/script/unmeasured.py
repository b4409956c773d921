"""Jobs of which only times are of interest: nothing is evaluated, and no checkpoint is stored."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from manyhands.job import Job

UNMEASURED: Final[dict[str, Any]] = {
    "validation": None,
    "evaluate_every": None,
    "measures": (),
    "target": None,
    "early_stopping": None,
}
"""Fields of a job of which nothing is evaluated."""
UNSTORED: Final[dict[str, Any]] = {"checkpoint": None, "keep": 3}
"""Fields of a job of which no checkpoint is stored; `keep` as in `manyhands.job.fields`, which
needs torch."""


def for_times(job: Job, samples: int | None) -> Job:
    """A job for runs of which only the times are of interest.

    Args:
        job: the job.
        samples: its only limit.
    """
    limits: dict[str, Any] = {"samples": samples, "epochs": None, "seconds": None}
    return replace(job, **limits, **UNMEASURED, **UNSTORED)
