"""The option `shares` of protocols in lockstep: faster workers get more of a global batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from manyhands.protocols.protocol import StrategyProtocol

if TYPE_CHECKING:
    from manyhands.job import Job
    from manyhands.runtime_needs import RuntimeNeeds

AT_OWN_PACE: Final = "workers take samples at their own pace, so a faster one has more already"
"""Why a protocol has no `shares`."""
ALIKE: Final = (
    "replicas are averaged with equal weights, and one that was trained on fewer samples would "
    "count too much; use averaging(shares=by_speed)"
)
"""As above."""


@dataclass(frozen=True, repr=False)
class DividedBatches(StrategyProtocol):
    """The field of protocols whose workers wait for each other, and are weighted by samples."""

    shares: Literal["even", "by_speed"] = field(default="even", kw_only=True)
    """How the global batch is divided among workers: evenly, or `by_speed`, so that a worker which
    computes more slowly has fewer samples and all are ready at the same time. Speeds are measured
    in every step, and shares follow them within about ten."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shares not in ("even", "by_speed"):
            raise ValueError(f"shares must be even or by_speed, got {self.shares!r}")

    def needs(self, workers: int) -> RuntimeNeeds:
        """As of any protocol, and how batches are divided."""
        return replace(super().needs(workers), by_speed=self.shares == "by_speed")

    def check_job(self, job: Job, workers: int) -> None:
        """Raise ValueError, naming the fix, if it cannot train this job."""
        super().check_job(job, workers)
        if self.shares == "by_speed" and job.streams:
            raise ValueError(
                f"{self} needs data with a length, and {type(job.data).__name__} is a stream, "
                "whose batches are divided evenly: leave out shares"
            )
