"""The design of a comparison: strategies, repeats, budget and conditions."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.faults import Faults
from manyhands.job import Job
from manyhands.lab.entrants import Sweeps, number
from manyhands.lab.order import PlannedRun, turns
from manyhands.pacing import Pace, words
from manyhands.script import loading as scripts
from manyhands.script.job_changes import RunLimits
from manyhands.script.origin import NOTEBOOK, Overrides, override, read_lr

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from manyhands.cluster import Cluster
    from manyhands.lab.entrants import Entrant
    from manyhands.script.origin import Origin
    from manyhands.virtual import Times
from manyhands.lab.networks.namespaces import NetworkShape
from manyhands.lab.networks.sites import check_live


@dataclass(frozen=True, kw_only=True)
class Budget(RunLimits):
    """The limits and evaluations of every run; None where the job's own apply."""

    def of(self, job: Job, seed: int | None = None) -> Job:
        """The job under this budget; raises ValueError if it is not valid for the job."""
        return override(job, Overrides(**vars(self), seed=seed))


@dataclass(frozen=True, kw_only=True)
class VirtualConditions:
    """The conditions of a virtual comparison; None for the defaults of `simulate`."""

    times: str | Times | None = None
    bandwidth: str | float | None = None
    latency: str | float | None = None
    cores: int | None = None
    hosts: int | None = None
    """Hosts among which workers are divided, in blocks of ranks; requires a bandwidth."""
    coding: str | float | None = None
    """Bytes per second at which codecs encode and decode."""
    time_only: bool | None = None
    """Whether to compute no numbers."""

    def at(self, turn: PlannedRun) -> VirtualConditions:
        """These conditions with the values that were swept for a run."""
        swept = {name: value for name, value in turn.conditions if name in vars(self)}
        counts = {name: int(swept[name]) for name in ("cores", "hosts") if name in swept}
        return replace(self, **(swept | counts))  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Script:
    """The script of a job, which other processes execute to get the job."""

    path: Path
    job: str
    """The name at the top level of the job, or of the function that makes it."""
    arguments: tuple[str, ...] = ()
    source: str = ""
    """Its text, if it is not a file before the comparison: that of a notebook's cells."""

    @property
    def digest(self) -> str:
        """Hash of the script, which detects changes."""
        text = self.source.encode() if self.source else self.path.read_bytes()
        return hashlib.sha256(text).hexdigest()

    def inside(self, folder: Path) -> Script:
        """The script with its place in a comparison's folder, if it is not a file yet."""
        return replace(self, path=(folder / self.path).resolve()) if self.source else self

    def write(self) -> None:
        """Write the file, if it is not one yet."""
        if self.source:
            self.path.write_text(self.source, encoding="utf-8")


def script_of(
    job: Job, source: Job | Callable[..., Job], frame: FrameType, *, required: bool
) -> Script | None:
    """The script of a job; None if it has none, unless other processes require it.

    Args:
        job: the job.
        source: the job, or the function that makes it.
        frame: where it is used.
        required: whether other processes execute the script.

    Raises:
        ValueError: it has none, and is required.
    """
    made_by = None if isinstance(source, Job) else source
    try:
        origin = scripts.trace_back(job, None, frame.f_globals, made_by=made_by, frame=frame)
    except ValueError:
        if required:
            raise
        return None
    if origin.package and not required:
        return None
    path, text = Path(origin.script or NOTEBOOK), origin.source
    if origin.package:
        # Other processes execute a file: one that imports the module.
        path, text = Path(f"{path.stem.strip('_')}_job.py"), _importing(origin)
    return Script(path=path, job=origin.job, arguments=origin.argv[1:], source=text)


def _importing(origin: Origin) -> str:
    """The text of a script that imports the job, or what makes it, from a module of a package."""
    module = f"{origin.package}.{Path(origin.script).stem}"
    name = re.split(r"[.\[]", origin.job, maxsplit=1)[0]
    return f"import sys\n\nsys.path.insert(0, {origin.search!r})\nfrom {module} import {name}\n"


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
    faults: Faults = field(default_factory=Faults)
    """What goes wrong on purpose, in every run."""
    virtual: VirtualConditions | None = None
    """The virtual cluster; None for real processes."""
    cluster: Cluster | None = None
    """The declared cluster, virtual or of namespaces, the same for all strategies."""
    network: str = ""
    """Network between the workers, as text: "100mbit"; empty for the machine's own."""
    repeats: int = 3
    margin: float = 0.05
    price: float | None = None
    lr: str | None = None
    """Learning rate of all runs, or a factor of the optimizer's; None for the optimizer's own."""
    sweeps: Sweeps = field(default_factory=Sweeps)
    """What is swept; the entrants and the numbers of workers are those of the sweeps already."""

    def __post_init__(self) -> None:
        for name in ("workers", "repeats"):
            value = getattr(self, name)
            least = min(value, default=0) if isinstance(value, tuple) else value
            if least < 1:
                raise ValueError(f"{name} must be at least 1, got {least}")
        if not 0 < self.margin < 1:
            raise ValueError(
                f"margin must be between 0 and 1, as in 0.05 for 5 %, got {self.margin:g}"
            )

    @property
    def turns(self) -> tuple[PlannedRun, ...]:
        """All runs, in the order in which they are made."""
        return turns(self.entrants, self.workers, self.repeats, self.seed, self.sweeps.conditions)

    def swept(self, turn: PlannedRun) -> dict[str, int | float | str]:
        """The values of a run's swept options, by name."""
        found = dict(turn.entrant.swept)
        if self.sweeps.workers and turn.entrant.workers(turn.workers + 1) > 1:
            found["workers"] = turn.workers
        return found | {name: number(value) for name, value in turn.conditions}

    def rate(self, turn: PlannedRun) -> str | None:
        """The learning rate of a run, or a factor of the optimizer's; None for its own."""
        return turn.entrant.lr or self.lr

    def links(self, turn: PlannedRun) -> str:
        """The network of a run as text; empty for the machine's own."""
        return dict(turn.conditions).get("network", self.network)

    def paces(self, turn: PlannedRun) -> tuple[Pace, ...]:
        """The slowdowns of a run, of workers that it has."""
        varied = dict(turn.conditions).get("slow", "").split()
        asked = (*self.slow, *map(Pace.read, varied), *turn.entrant.slow)
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
        for network in (self.network, *self.sweeps.values("network")):
            if network:
                NetworkShape.read(network)
        if self.cluster is not None:
            self._check_cluster(self.cluster)
        for pace in (*self.slow, *(p for entrant in self.entrants for p in entrant.slow)):
            pace.check(max(self.workers))
        for pace in map(Pace.read, " ".join(self.sweeps.values("slow")).split()):
            pace.check(max(self.workers))
        self._check_sweeps()

    def _check_sweeps(self) -> None:
        """Refuse conditions that the runs cannot have, or that are given twice."""
        for name, _ in self.sweeps.conditions[0] if self.sweeps.conditions else ():
            if name in vars(VirtualConditions()) and self.virtual is None:
                raise ValueError(f"a sweep over {name} needs a virtual cluster: add --virtual")
            if name == "network" and self.virtual is not None:
                raise ValueError("a sweep over network needs real processes: sweep bandwidth")
            fixed = self.network if name == "network" else getattr(self.virtual, name, None)
            if fixed:
                raise ValueError(f"{name} is given twice, fixed and swept: keep one")
        if self.lr is not None:
            read_lr(self.lr)
        if self.lr is not None and any(entrant.lr for entrant in self.entrants):
            raise ValueError("lr is given twice, fixed and swept: keep one")

    def _check_cluster(self, cluster: Cluster) -> None:
        for count in self.workers:
            cluster.check_workers(count)
        conditions = vars(self.virtual) if self.virtual else {"network": self.network}
        for name in ("bandwidth", "latency", "cores", "hosts", "network"):
            if conditions.get(name) or self.sweeps.values(name):
                raise ValueError(f"{name} is given twice: leave it out, the cluster determines it")
        if self.virtual is None:
            check_live(cluster)

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
            "faults": self.faults.text,
            "network": self.network,
            "cluster": None if self.cluster is None else str(self.cluster),
            "sweeps": "; ".join(self.sweeps.texts),
            "lr": self.lr,
            "kind": "live" if conditions is None else "virtual",
        }
        settings |= vars(self.budget) | (vars(conditions) if conditions else {})
        return {name: str(value) for name, value in settings.items() if value not in (None, "")}
