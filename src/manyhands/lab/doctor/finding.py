"""Findings about a machine, the run that is planned on it, and what the checks read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from manyhands.cluster import Cluster
from manyhands.live.processes.control_groups import ControlGroups

if TYPE_CHECKING:
    from manyhands.job import Job
    from manyhands.live.hosts.host_list import Hosts
    from manyhands.runtime_needs import RuntimeNeeds
    from manyhands.strategies import Strategy

Severity = Literal["error", "warning", "ok"]
"""An error makes the run fail; a warning makes it slow or fragile."""


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Example:
        >>> str(Finding("swap", "ok", "none is in use"))
        'ok: swap: none is in use'
    """

    name: str
    """What was checked."""
    severity: Severity
    found: str
    """The figure that was found."""
    advice: str = ""
    """What to do; empty if nothing is wrong."""

    def __str__(self) -> str:
        words = f"{self.severity}: {self.name}: {self.found}"
        return f"{words}; {self.advice}" if self.advice else words


@dataclass(frozen=True)
class Surroundings:
    """What checks read of the machine, beside what they try themselves."""

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    groups: ControlGroups = field(default_factory=ControlGroups)
    wall: Callable[[], float] = time.time
    """Unix time."""
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    time_port: int = 123
    """The UDP port at which other hosts are asked for their time (NTP)."""


@dataclass(frozen=True)
class ExaminedRun:
    """The run that the machine is examined for."""

    strategy: Strategy
    workers: int
    """Workers on all hosts."""
    job: Job | None = None
    hosts: Hosts | None = None
    listen: str | None = None
    key_file: Path | None = None
    output: Path | None = None
    calibration: Path | None = None
    """What `manyhands calibrate --hosts` stored."""

    @cached_property
    def here(self) -> int:
        """Workers on this host, the first one."""
        return self.workers if self.hosts is None else self.hosts.counts[0][1]

    @cached_property
    def needs(self) -> RuntimeNeeds:
        """What the strategy needs of the runtime."""
        return self.strategy.needs(self.workers)

    @cached_property
    def cores(self) -> int:
        """Cores that processes on this host may use."""
        return Cluster.local().cores

    @cached_property
    def model_bytes(self) -> int:
        """Bytes of the model's parameters; 0 without a job."""
        from manyhands.live.agent.memory_check import model_bytes  # noqa: PLC0415 - loads torch

        return 0 if self.job is None else model_bytes(self.job)

    @cached_property
    def folder(self) -> Path:
        """The folder in which the run's folder will be."""
        return Path("runs") if self.output is None else self.output

    @property
    def words(self) -> str:
        """The run, in words."""
        ending = "" if self.workers == 1 else "s"
        return f"{self.strategy} on {self.workers} worker{ending}"


Check = Callable[[ExaminedRun, Surroundings], Iterator[Finding]]
"""One check: yields what it found."""
