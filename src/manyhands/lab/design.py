"""The design of a comparison: strategies, repeats, budget and conditions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.lab.order import PlannedRun, turns
from manyhands.pacing import Pace, words
from manyhands.script.origin import Overrides, override

if TYPE_CHECKING:
    from pathlib import Path

    from manyhands.cluster import Cluster
    from manyhands.job import Job
    from manyhands.lab.entrants import Entrant
    from manyhands.virtual import Times
from manyhands.lab.networks.namespaces import NetworkShape


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The limits of every run; None where the job's own limit applies."""

    epochs: float | None = None
    samples: int | None = None
    seconds: float | None = None
    target: str | None = None

    def of(self, job: Job, seed: int | None = None) -> Job:
        """The job under this budget; raises ValueError if it is not valid for the job."""
        return override(job, Overrides(**vars(self), seed=seed))


@dataclass(frozen=True, kw_only=True)
class VirtualConditions:
    """The cluster of a virtual comparison; None for the defaults of `simulate`."""

    times: str | Times | None = None
    bandwidth: str | float | None = None
    latency: str | float | None = None
    cores: int | None = None
    cluster: Cluster | None = None
    hosts: int | None = None
    """Hosts among which workers are divided, in blocks of ranks; requires a bandwidth."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """The script of a job, which other processes execute to get the job."""

    path: Path
    job: str
    """The job's name at the top level."""
    arguments: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Hash of the script, which detects changes."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Design:
    """All settings of a comparison."""

    entrants: tuple[Entrant, ...]
    workers: tuple[int, ...]
    script: Script | None = None
    """The script; None for a virtual comparison of a job without one."""
    seed: int = 0
    budget: Budget = Budget()
    slow: tuple[Pace, ...] = ()
    """Workers that are slowed down under all strategies."""
    virtual: VirtualConditions | None = None
    """The virtual cluster; None for real processes."""
    network: str = ""
    """Network between the workers, as text: "100mbit"; empty for the machine's own."""
    repeats: int = 3
    margin: float = 0.05
    price: float | None = None

    def __post_init__(self) -> None:
        for name in ("workers", "repeats"):
            value = getattr(self, name)
            if not value or (isinstance(value, tuple) and min(value) < 1):
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 < self.margin < 1:
            raise ValueError(
                f"margin must be between 0 and 1, as in 0.05 for 5 %, got {self.margin:g}"
            )

    @property
    def turns(self) -> tuple[PlannedRun, ...]:
        """All runs, in the order in which they are made."""
        return turns(self.entrants, self.workers, self.repeats, self.seed)

    def paces(self, turn: PlannedRun) -> tuple[Pace, ...]:
        """The slowdowns of a run, of workers that it has."""
        asked = (*self.slow, *turn.entrant.slow)
        return tuple(p for p in asked if p.worker is None or p.worker < turn.workers)

    @property
    def paced(self) -> str:
        """Description of all slowdowns."""
        of_some = [
            f"under {entrant.label}, {words(entrant.slow)}"
            for entrant in self.entrants
            if entrant.slow
        ]
        return "; ".join(filter(None, [words(self.slow), *of_some]))

    def check(self) -> None:
        """Raise ValueError, with the fix, if a run is not possible."""
        for turn in self.turns:
            try:
                turn.entrant.strategy.check(turn.workers)
            except ValueError as error:
                raise ValueError(f"{turn.entrant.label}: {error}") from error
        if self.network:
            NetworkShape.read(self.network)
        for pace in (*self.slow, *(p for entrant in self.entrants for p in entrant.slow)):
            pace.check(max(self.workers))

    def identity(self) -> dict[str, str]:
        """Settings, by name, that must be equal for runs to belong to one comparison.

        The number of repeats, the margin and the price do not affect runs that were made.
        """
        script, conditions = self.script, self.virtual
        settings = {
            "script": script and script.path.name,
            "content of the script": script and script.digest,
            "job": script and script.job,
            "arguments": script and " ".join(script.arguments),
            "strategies": ", ".join(entrant.label for entrant in self.entrants),
            "workers": ", ".join(map(str, self.workers)),
            "seed": str(self.seed),
            "slow": " ".join(map(str, self.slow)),
            "network": self.network,
            "kind": "live" if conditions is None else "virtual",
        }
        settings |= vars(self.budget) | (vars(conditions) if conditions else {})
        return {name: str(value) for name, value in settings.items() if value not in (None, "")}
