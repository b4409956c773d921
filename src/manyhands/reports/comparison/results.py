"""`results.json`: what a comparison measured, as data; `docs/results.md` explains every field.

Times are in seconds, sizes in bytes, shares and accuracies between 0 and 1. What was not measured
is null, which is not the same as 0. New fields come with a default; a change of meaning is a new
`schema`.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from manyhands.cluster import Cluster
from manyhands.reports.comparison.records import (
    DataRecord,
    DesignRecord,
    ModelRecord,
    OptimizerRecord,
    ScriptRecord,
)
from manyhands.reports.comparison.tables import Table, frame, rows, write_csv, write_jsonl

if TYPE_CHECKING:
    import pandas as pd

SCHEMA: Final = 1
"""What this code writes, and the newest that it reads."""

FILE: Final = "results.json"

PARTS: Final = ("compute", "wait", "communication", "coding", "data", "evaluation", "other")
"""What a worker's time of training is divided into, in the order in which it is shown."""


CONDITIONS: Final = (
    *("slow", "network", "times", "bandwidth", "latency", "cores", "hosts", "coding"),
)
"""Conditions of runs that can be swept: runs are compared where they are equal."""


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


class PhaseBytes(_Value, frozen=True, kw_only=True):
    """Bytes that the processes of a run sent in one phase, each message counted once."""

    payload_between: int = 0
    """Bytes of tensors, between hosts;"""
    wire_between: int = 0
    """with their envelopes."""
    payload_within: int = 0
    """Likewise between processes of one host, in shared memory where they can."""
    wire_within: int = 0
    workers_sent: int = 0
    """Payload by direction: what the workers' processes sent;"""
    workers_received: int = 0
    """what they received."""


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
    where: str = ""
    """The line of the user's code at which it failed, as in `train.py:41`; empty: none is known."""
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
    measures: dict[str, Curve] = {}
    """What was measured beside metrics, by name: at every evaluation, since the one before."""
    loss: Curve = Curve()
    """Of training, averaged over all workers' samples."""
    throughput: Curve = Curve()
    """Samples per second since the point before."""
    bytes_sent: Curve = Curve()
    """Wire bytes that all processes had sent by then; empty if they were not counted."""
    time_to_target: float | None = None
    """Seconds of training until the target was first met; null if it was not."""
    samples_to_target: int | None = None
    shares: dict[str, float] = {}
    """Of the workers' time of training: `PARTS`, together 1; `coding` only if there was any."""
    coding: dict[str, float] = {}
    """Seconds of encoding and decoding, over all `workers` and over all `servers`; empty without a
    codec."""
    sent: int | None = None
    """Wire bytes that all processes sent, in all phases, between hosts and within them; null if
    they were not counted."""
    sent_per_sample: float | None = None
    traffic: dict[str, PhaseBytes] = {}
    """By phase: `start`, `training`, `evaluation` and `idle`; empty if they were not counted."""
    staleness: StalenessSummary | None = None
    """Null where no update can be stale: in lockstep."""
    seen: int = 0
    """Samples accounted for; and of these or beside these"""
    repeated: int | None = None
    """leased again because their first worker was lost;"""
    lost: int | None = None
    """never trained on."""
    paid: int | None = None
    """The workers whose price is paid: those of all hosts with a worker or a server, a host of
    servers alone as one with the most workers; null: written by an earlier version."""
    cost: float | None = None
    """Price × paid workers × hours, start-up included; null without a price."""
    swept: dict[str, int | float | str] = {}
    """The values of the swept options that this run has, by name: `{"wait_for": 3}`."""
    curve: str = ""
    """The sweep of its strategy as it was written, `softsync(wait_for=1..8)`; empty if none."""
    threads: int | None = None
    """Of each process that computes; null: not recorded."""
    started: str = ""
    """UTC, as in `2026-01-31T12:00:00Z`; empty: not recorded."""
    ended: str = ""
    parameters_sha256: str | None = None
    """Of the final parameters; null if the run stored none."""

    @property
    def label(self) -> str:
        """The strategy and on how many workers, as in `ssp(staleness=4) × 4`."""
        return f"{self.strategy} × {self.workers}{self.condition}"

    @property
    def failure(self) -> str:
        """Why it failed, and at which line of the user's code; empty for one that finished."""
        named = self.where and self.where not in self.words
        return f"{self.words}, at {self.where}" if named else self.words

    @property
    def condition(self) -> str:
        """The swept conditions that the run had, as in `, bandwidth=10mbit`; usually empty."""
        return "".join(
            f", {name}={value}" for name, value in self.swept.items() if name in CONDITIONS
        )


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


class VerdictRecord(_Value, frozen=True, kw_only=True):
    """What the runs of one kind on as many workers say: see `docs/compare.md`.

    Example:
        >>> import manyhands as mh
        >>> mh.VerdictRecord(kind="live", workers=4, recommendation="No run has finished.").failed
        0
    """

    kind: Literal["live", "virtual"]
    workers: int
    condition: str = ""
    """The swept conditions of the runs, as in `, bandwidth=10mbit`; usually empty."""
    recommendation: str
    reasons: tuple[str, ...] = ()
    strategy: str | None = None
    """The one that is recommended; null where no run has finished, or more are to be made."""
    failed: int = 0
    """Runs that failed; none of their figures is in any median."""


class Comparison(_Value, frozen=True, kw_only=True):
    """Several runs of one job, to be held against each other: the content of `results.json`.

    Example:
        >>> import manyhands as mh
        >>> comparison = mh.Comparison(strategies=("allreduce()", "single()"), workers=(4,))
        >>> comparison.schema
        1
        >>> comparison.to_csv("runs.csv").name
        'runs.csv'
    """

    schema: int = SCHEMA
    manyhands: str = ""
    """Version; so for"""
    python: str = ""
    torch: str = ""
    numpy: str = ""
    os: str = ""
    """The operating system and its version."""
    created: str = ""
    """When it was started first: UTC, as in `2026-01-31T12:00:00Z`."""
    ended: str = ""
    """When its last run had ended."""
    script: str = ""
    source: ScriptRecord | None = None
    """The script's content; null for a job that was in no script."""
    job: dict[str, str] = {}
    """The settings in force, by name."""
    model: ModelRecord | None = None
    optimizer: OptimizerRecord | None = None
    data: DataRecord | None = None
    design: DesignRecord | None = None
    """What was asked for; null if it was not recorded."""
    machine: Machine = Machine()
    hosts: int = 1
    processes_per_core: float | None = None
    """Processes of a run that compute, at the largest number of workers, over the cores."""
    paced: str = ""
    """What was slowed on purpose, in words: `worker 2 computes 4 times as long`."""
    network: str = ""
    """Empty for the machine's own; else in words: `100mbit, every worker in a namespace`, or the
    links between virtual hosts."""
    cluster: str = ""
    """The declared cluster as text; empty if none was declared, or if it has no text."""
    layout: Cluster | None = None
    """The declared cluster: its hosts, sites and links, and the hosts of the servers."""
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
    sweeps: tuple[str, ...] = ()
    """What was swept, as it was written: `softsync(wait_for=1..8)`."""
    runs: tuple[RunResult, ...] = ()
    verdicts: tuple[VerdictRecord, ...] = ()
    """What the runs say: live before virtual ones, those with the most workers first."""

    def frame(self, table: Table = "runs") -> "pd.DataFrame":
        """A table of the runs as a pandas data frame; `docs/results.md` lists its columns.

        Args:
            table: "runs", a row per run; "curves", a row per point of a validation metric or of
                the training loss; "staleness", a row per staleness that occurred.

        Raises:
            ModuleNotFoundError: the extra `manyhands[pandas]` is not installed.
        """
        return frame(rows(self.runs, table))

    def to_csv(self, path: Path | str, table: Table = "runs") -> Path:
        """Write a table of the runs as CSV.

        Args:
            path: the file to write.
            table: as for `frame`.

        Returns:
            The path.
        """
        return write_csv(rows(self.runs, table), path)

    def to_jsonl(self, path: Path | str, table: Table = "runs") -> Path:
        """Write a table of the runs as JSON lines: one object per row.

        Args:
            path: the file to write.
            table: as for `frame`.

        Returns:
            The path.
        """
        return write_jsonl(rows(self.runs, table), path)


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
        return _comparison(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} is not the result of a comparison: {error}. Use a {FILE}, the folder of a "
            "comparison, or folders of runs"
        ) from error


def _comparison(content: bytes) -> Comparison:
    try:
        return msgspec.json.decode(content, type=Comparison)
    except msgspec.ValidationError:
        fields = msgspec.json.decode(content)
        layout = fields.get("layout") if isinstance(fields, dict) else None
        if layout is None or isinstance(layout["servers"], list):
            raise
        # Once servers were on one named host, or on all.
        layout["servers"] = [layout["servers"]] if layout["servers"] else []
        return msgspec.convert(fields, Comparison)


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
