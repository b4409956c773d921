"""Detection of NaN and infinity in the losses of a virtual run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from manyhands.failure import REMEDY, Diverged

if TYPE_CHECKING:
    from manyhands.job import Job
    from manyhands.trace import Recorder


class VirtualDivergence:
    """Records the first loss that is not finite, and ends the run if `stop_on_nan` is set."""

    def __init__(self, job: Job) -> None:
        self._stops = job.stop_on_nan
        self._found = False

    def check(self, recorder: Recorder, value: float, what: str, where: str) -> None:
        """Check a loss: `what` it is, and `where` in the run."""
        if self._found or math.isfinite(value):
            return
        self._found = True
        words = f"the {what} loss became {'NaN' if math.isnan(value) else 'infinite'} {where}"
        recorder.event("diverged", {"words": words, "own": "yes"})
        if self._stops:
            raise Diverged(f"diverged: {words}; {REMEDY}")
