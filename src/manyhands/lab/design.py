"""What a comparison is made of: who, how often, until when, and under which conditions."""

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
    """What every run is given; None where the job's own limit holds."""

    epochs: float | None = None
    samples: int | None = None
    seconds: float | None = None
    target: str | None = None

    def of(self, job: Job, seed: int | None = None) -> Job:
        """The job under this budget; ValueError where it makes no sense for the job."""
        return override(job, Overrides(**vars(self), seed=seed))


@dataclass(frozen=True, kw_only=True)
class VirtualConditions:
    """What a virtual comparison runs on; None where `simulate` has a default."""

    times: str | Times | None = None
    bandwidth: str | float | None = None
    latency: str | float | None = None
    cores: int | None = None
    cluster: Cluster | None = None
    hosts: int | None = None
    """That the workers are divided among, in blocks of ranks, where links have a bandwidth."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """Where a job comes from, so that other processes can have it too."""

    path: Path
    job: str
    """Its name at the top level."""
    arguments: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """By which a changed script is known."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Design:
    """A comparison, all settled."""

    entrants: tuple[Entrant, ...]
    workers: tuple[int, ...]
    script: Script | None = None
    """None where a job of no script is simulated."""
    seed: int = 0
    budget: Budget = Budget()
    slow: tuple[Pace, ...] = ()
    """Who is slowed under all strategies."""
    virtual: VirtualConditions | None = None
    """None: on real processes."""
    network: str = ""
    """Between the workers, as text: "100mbit"; empty: the machine's own."""
    repeats: int = 3
    margin: float = 0.05
    price: float | None = None

    def __post_init__(self) -> None:
        for name in ("workers", "repeats"):
            value = getattr(self, name)
            if not value or (isinstance(value, tuple) and min(value) < 1):
                raise ValueError(f"{name} must be 1 or more, not {value}")
        if not 0 < self.margin < 1:
            raise ValueError(f"the margin is a share, as in 0.05 for 5 %, not {self.margin:g}")

    @property
    def turns(self) -> tuple[PlannedRun, ...]:
        """All runs, in their order."""
        return turns(self.entrants, self.workers, self.repeats, self.seed)

    def paces(self, turn: PlannedRun) -> tuple[Pace, ...]:
        """Who is slowed in a run: of those that it has."""
        asked = (*self.slow, *turn.entrant.slow)
        return tuple(p for p in asked if p.worker is None or p.worker < turn.workers)

    @property
    def paced(self) -> str:
        """What is slowed on purpose, in words."""
        of_some = [
            f"under {entrant.label}, {words(entrant.slow)}"
            for entrant in self.entrants
            if entrant.slow
        ]
        return "; ".join(filter(None, [words(self.slow), *of_some]))

    def check(self) -> None:
        """Raise ValueError, naming the fix, if a run of it cannot be."""
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
        """What must be the same for runs to belong to one comparison, by name.

        More repeats, another margin or another price change no run that was made.
        """
        script, conditions = self.script, self.virtual
        told = {
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
        told |= vars(self.budget) | (vars(conditions) if conditions else {})
        return {name: str(value) for name, value in told.items() if value not in (None, "")}
