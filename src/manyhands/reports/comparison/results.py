"""`results.json`: what a comparison measured, as data; `docs/results.md` explains every field.

Times are in seconds, sizes in bytes, shares and accuracies between 0 and 1. What was not measured
is null, which is not the same as 0. New fields come with a default; a change of meaning is a new
`schema`.
"""

import os
from pathlib import Path
from typing import Final, Literal

import msgspec

SCHEMA: Final = 1
"""What this code writes, and the newest that it reads."""

FILE: Final = "results.json"

PARTS: Final = ("compute", "wait", "communication", "data", "evaluation", "other")
"""What a worker's time of training is divided into, in the order in which it is shown."""


class _Value(msgspec.Struct, frozen=True, kw_only=True):
    """What all of these are: immutable, an object in JSON."""


class Curve(_Value, frozen=True, kw_only=True):
    """A value over a run; the three lists are of one length."""

    seconds: tuple[float, ...] = ()
    """Of training, from the moment at which the first worker had started up."""
    samples: tuple[int, ...] = ()
    """That all workers had trained on by then."""
    value: tuple[float | None, ...] = ()
    """Null where it was not finite."""


class StalenessSummary(_Value, frozen=True, kw_only=True):
    """How many versions the applied updates were old."""

    mean: float
    p99: int
    """The smallest staleness that at least 99 % of the updates do not exceed."""
    most: int
    updates: int
    histogram: dict[int, int]
    """How many updates were how old."""


class RunResult(_Value, frozen=True, kw_only=True):
    """One run.

    Example:
        >>> import manyhands as mh
        >>> mh.RunResult(
        ...     strategy="ssp(staleness=4)",
        ...     kind="live",
        ...     workers=4,
        ...     repeat=0,
        ...     seed=0,
        ...     folder="runs/0",
        ...     status="finished",
        ... ).label
        'ssp(staleness=4) × 4'
    """

    strategy: str
    """As text, with all that differs from its defaults."""
    kind: Literal["live", "virtual"]
    workers: int
    repeat: int
    """0, 1, 2 and so on: runs of one repeat are neighbours in time."""
    seed: int
    folder: str
    """The run's, relative to `results.json`."""
    status: Literal["finished", "failed"]
    words: str = ""
    """Why it failed."""
    samples: int = 0
    """Trained on, by all workers together."""
    seconds: float = 0.0
    """Of training: from the first batch of any worker to the end of the last worker's work,
    evaluations included."""
    start_up: float = 0.0
    """Seconds until the first worker took its first batch."""
    rate: float = 0.0
    """Samples per second over the whole of training: the speed by which runs are compared."""
    first_epoch: float | None = None
    """Seconds of the first epoch, without evaluations; null unless another followed."""
    later_epoch: float | None = None
    """Seconds of each later epoch on average, without evaluations."""
    evaluation: float | None = None
    """Seconds of each evaluation on average; null where none took any time."""
    validation: dict[str, Curve] = {}
    """By metric."""
    loss: Curve = Curve()
    """Of training, averaged over all workers' samples."""
    time_to_target: float | None = None
    """Seconds of training until the target was first met; null if it was not."""
    samples_to_target: int | None = None
    shares: dict[str, float] = {}
    """Of the workers' time of training: `PARTS`, together 1."""
    sent: int | None = None
    """Bytes that all processes sent; null if they were not counted."""
    sent_per_sample: float | None = None
    staleness: StalenessSummary | None = None
    """Null where no update can be stale: in lockstep."""
    seen: int = 0
    """Samples accounted for; and of these or beside these"""
    repeated: int | None = None
    """leased again because their first worker was lost;"""
    lost: int | None = None
    """never trained on."""
    cost: float | None = None
    """Price × workers × hours, start-up included; null without a price."""

    @property
    def label(self) -> str:
        """The strategy and on how many workers, as in `ssp(staleness=4) × 4`."""
        return f"{self.strategy} × {self.workers}"


class Machine(_Value, frozen=True, kw_only=True):
    """The host that ran it; the first one, where there were several."""

    host: str = ""
    cpu: str = ""
    """The processor's model."""
    cores: int | None = None
    """That the runs were allowed to use."""
    memory: int | None = None
    """Bytes."""
    devices: tuple[str, ...] = ()
    """What computed, as in `cpu` or `NVIDIA L4`."""


class Comparison(_Value, frozen=True, kw_only=True):
    """Several runs of one job, to be held against each other: the content of `results.json`.

    Example:
        >>> import manyhands as mh
        >>> mh.Comparison(strategies=("allreduce()", "single()"), workers=(4,)).schema
        1
    """

    schema: int = SCHEMA
    manyhands: str = ""
    """Version; so for"""
    python: str = ""
    torch: str = ""
    created: str = ""
    """UTC, as in `2026-01-31T12:00:00Z`."""
    script: str = ""
    job: dict[str, str] = {}
    """The settings in force, by name."""
    machine: Machine = Machine()
    hosts: int = 1
    processes_per_core: float | None = None
    """Processes of a run that compute, at the largest number of workers, over the cores."""
    paced: str = ""
    """What was slowed on purpose, in words: `worker 2 computes 4 times as long`."""
    network: str = ""
    """Empty for the machine's own; else in words: `100mbit, every worker in a namespace`, or the
    links between virtual hosts."""
    budget: str = ""
    """What every run was given, in words: `60,000 samples`."""
    budget_seconds: float | None = None
    """The time that "most accurate within the budget" asks about; null: the time by which the
    fastest run of a repeat was through."""
    target: str | None = None
    """As in `accuracy >= 0.98`."""
    margin: float = 0.05
    """A difference in speed that does not matter, as a share."""
    accuracy_margin: float = 0.01
    """A difference in accuracy that does not matter, in parts of 1."""
    price: float | None = None
    """Of a worker for an hour, in whatever currency."""
    currency: str = ""
    strategies: tuple[str, ...] = ()
    """In the order in which they were named."""
    workers: tuple[int, ...] = ()
    repeats: int = 1
    runs: tuple[RunResult, ...] = ()


def read_results(path: Path | str) -> Comparison:
    """The comparison in that file, or in `results.json` of that folder."""
    path = Path(path)
    if path.is_dir():
        path = path / FILE
    content = path.read_bytes()
    try:
        version = msgspec.json.decode(content, type=_Schema).schema
        if version > SCHEMA:
            raise ValueError(
                f"{path} has schema {version} and this version of Manyhands reads up to {SCHEMA}: "
                "read it with the version that wrote it"
            )
        return msgspec.json.decode(content, type=Comparison)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} is not the result of a comparison: {error}. Use a {FILE}, the folder of a "
            "comparison, or folders of runs"
        ) from error


def write_results(comparison: Comparison, path: Path | str) -> None:
    """Write the comparison to that file atomically."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.part")
    with partial.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(comparison), indent=1))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


class _Schema(msgspec.Struct):
    """The schema version, which is read first."""

    schema: int
