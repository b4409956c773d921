"""What is asked of a virtual run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.script.job_changes import JobChanges

if TYPE_CHECKING:
    from pathlib import Path

    from manyhands.cluster import Cluster
    from manyhands.costs import CodingSpeeds
    from manyhands.pacing import Pace
    from manyhands.strategies import Strategy
    from manyhands.virtual import Faults, Times


@dataclass(frozen=True, kw_only=True)
class Asked(JobChanges):
    """What a script or a command line asks of a virtual run; None where it says nothing."""

    strategy: str | Strategy | None = None
    workers: int | None = None
    times: str | Times | None = None
    slow: tuple[Pace, ...] | None = None
    stretch: float | None = None
    """What the times are multiplied by."""
    bandwidth: str | float | None = None
    latency: str | float | None = None
    cores: int | None = None
    placing: str | None = None
    hosts: tuple[int, int] | None = None
    """Of workers, in blocks of ranks, and of servers: where several runs have the same ones."""
    cluster: str | Cluster | None = None
    service: str | float | None = None
    handover: str | float | None = None
    coding: str | float | CodingSpeeds | None = None
    detection: str | float | None = None
    faults: str | Faults | None = None
    time_only: bool | None = None
    resume: str | Path | None = None
    output: Path | None = None
