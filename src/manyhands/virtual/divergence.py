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
        self._last: dict[int, str] = {}
        """By rank, where the last loss of a worker was; empty if it was finite."""

    def training(self, recorder: Recorder, value: float, sample: int, rank: int) -> None:
        """Check the loss of a worker's batch.

        If the run goes on, its update is not applied, and the worker may continue as before.
        """
        if math.isfinite(value):
            self._last[rank] = ""
            return
        where = f"at sample {sample:,} on worker {rank}"
        self._last[rank] = _words(value, "training", where)
        if self._stops:
            self.check(recorder, value, "training", where)

    def finally_(self, recorder: Recorder) -> None:
        """Note a divergence if at the end no worker has a finite loss."""
        if not self._found and self._last and all(self._last.values()):
            recorder.event("diverged", {"words": min(self._last.values()), "own": "yes"})

    def check(self, recorder: Recorder, value: float, what: str, where: str) -> None:
        """Check a loss: `what` it is, and `where` in the run."""
        if self._found or math.isfinite(value):
            return
        self._found = True
        words = _words(value, what, where)
        recorder.event("diverged", {"words": words, "own": "yes"})
        if self._stops:
            raise Diverged(f"diverged: {words}; {REMEDY}")


def _words(value: float, what: str, where: str) -> str:
    return f"the {what} loss became {'NaN' if math.isnan(value) else 'infinite'} {where}"
