"""The records of a trace: one JSON array per line, its tag first.

    ["header",1,"worker",0,"hostA",4711,"6f1c…",812.25,1760000000.5,"live"]
    ["span","compute",812.31,0.0123,0]

Arrays instead of objects, because most records are spans and field names would be half of every
span. New fields are added at the end of a record with a default, new records get a new tag: an
older reader skips and counts records that it does not know. Times are seconds of the writing
process's own clock; `read` converts them to one clock.

Records marked *cumulative* cover everything since the process began: the last one counts.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

from manyhands.trace.traffic import Flow

FORMAT: Final = 1
"""The version of the format that this code writes, and the newest that it reads."""

Kind = Literal[
    "compute", "exchange", "wait", "send", "receive", "encode", "data", "evaluate", "start"
]
"""The kinds of spans.

`exchange` is the time that a worker spent in a collective: its own gradients were ready and the
reduced ones were not yet. The part of it that was waiting for the slowest worker is known only when
all workers' traces are merged. `start` is everything before the first step.
"""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


class _Record(msgspec.Struct, frozen=True, array_like=True, tag=str.lower):
    """Base of all records: immutable, encoded as an array, tagged with its name."""


class Header(_Record, frozen=True, kw_only=True):
    """The writing process. First line of a file, and again when a restarted process appends."""

    format: int = FORMAT
    role: str
    """`worker`, `server`, `coordinator` or `agent`."""
    rank: int = 0
    """The number among processes of this role; for an agent, the index of its host."""
    host: str
    pid: int
    boot: str
    """The kernel's boot id: processes that share it share CLOCK_MONOTONIC."""
    clock: float
    """Time of the process's clock."""
    wall: float
    """Unix time at the same moment."""
    kind: Literal["live", "virtual"] = "live"

    @property
    def name(self) -> str:
        """`worker-0`, `server-1`; the first `coordinator` and `agent` have no number.

        >>> Header(role="agent", host="a", pid=1, boot="", clock=0.0, wall=0.0).name
        'agent'
        """
        alone = self.role not in {"worker", "server"} and self.rank == 0
        return self.role if alone else f"{self.role}-{self.rank}"


class Span(_Record, frozen=True, gc=False):
    """Time spent on one thing within one step. Spans are sampled; `Totals` are exact."""

    kind: Kind
    start: float
    seconds: float
    step: int


class Totals(_Record, frozen=True):
    """Exact sums, independent of the sampling of spans. Cumulative."""

    at: float
    steps: int
    samples: int
    seconds: dict[str, float]
    """Seconds by kind of span. Unknown kinds are read too, so that totals stay readable."""
    sent: dict[str, int]
    """Wire bytes by peer, as in `worker-3`, of all phases; of many peers those with most, and
    `others` for the rest."""
    received: dict[str, int]
    traffic: dict[str, Flow] = {}
    """Bytes by phase and scope, as in `training/between`; see `manyhands.trace.traffic`."""


class Point(_Record, frozen=True, gc=False):
    """A value over time and samples: the training `loss`, `validation/accuracy` and so on."""

    at: float
    name: str
    value: float | None
    """None if it was NaN or infinite, which JSON cannot represent."""
    samples: int
    """Samples trained on so far: by the run for a validation metric, which one process writes for
    all workers; by the writer for the training loss, which each worker writes for itself."""
    weight: float
    """Number of samples over which the value is a mean."""


class Staleness(_Record, frozen=True):
    """Number of applied updates by staleness, in versions. Cumulative."""

    at: float
    counts: dict[int, int]


class SenderStaleness(_Record, frozen=True):
    """`Staleness` of the updates of one sender. Cumulative for each sender."""

    at: float
    sender: str
    """The worker that computed the updates, as in `worker-3`."""
    counts: dict[int, int]


class SampleCount(_Record, frozen=True, gc=False, tag="samples"):
    """Samples that this process counts; the run's count is the sum over processes. Cumulative."""

    at: float
    seen: int
    repeated: int
    lost: int


class Event(_Record, frozen=True):
    """A rare event: a change of membership, a checkpoint, a failure.

    Reports use these; other events are shown as they are:

    `begin`       written by the agent first: the `samples` until the run ends, if they are known
    `epoch`       an epoch ended; its `number`, the `samples` the run has trained on so far and,
                  if evaluation is not to be counted, the `seconds` it took; written by one process
    `refused`     an update was not applied: the `worker`, `what` it had, `updates` and `samples` of
                  the worker that the writer has refused so far, and where the samples are
    `divided`     how the model was divided among the workers: by number, a line for every part
    `group`       the workers of a lockstep run formed a group: its `epoch`, the ranks of its
                  `workers`, the `step` that follows; written by its first member
    `repeated`    a `step` was interrupted by the loss of a worker, and is repeated
    `continued`   the first `step` of a group that replaced another one is complete
    `shares`      from a `step` on, workers have these `shares` of the global batch, by rank
    `trained`     a worker has finished training; what follows is not counted as training
    `parameters`  the final parameters' `sha256`
    `fault`       a fault on purpose began: `what` it is, as text; `fault over` when it has ended
    `not stored`  a checkpoint was left out: after how many `samples`, and in `words` why
    `trace waited`  traces could not be written for some `seconds`; in `words` what is missing
    `end`         how the run ended: `status` finished, failed or interrupted, and `words`; written
                  by the agent, by the coordinator if the agent was killed, or by worker 0 if there
                  is neither
    """

    at: float
    what: str
    detail: dict[str, str]


class Offset(_Record, frozen=True, gc=False):
    """Reference clock minus own clock, true within ± error."""

    at: float
    seconds: float
    error: float


class Setting(_Record, frozen=True, gc=False):
    """A setting of the run and where it came from: script, command line, default, torchrun."""

    name: str
    value: str
    source: str


Record = (
    Header
    | Span
    | Totals
    | Point
    | Staleness
    | SenderStaleness
    | SampleCount
    | Event
    | Offset
    | Setting
)


def live_header(
    role: str,
    rank: int = 0,
    *,
    clock: Callable[[], float],
    wall: Callable[[], float],
    host: str | None = None,
) -> Header:
    """The header of this process. `clock` must be CLOCK_MONOTONIC (`time.monotonic`).

    `host` is the host's name in the run; by default its own name.
    """
    host = socket.gethostname() if host is None else host
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        boot = host
    return Header(
        role=role, rank=rank, host=host, pid=os.getpid(), boot=boot, clock=clock(), wall=wall()
    )


def trace_file(folder: Path, header: Header) -> Path:
    """The file of a process's trace in the run's folder, to be opened in mode "ab"."""
    return folder / "trace" / f"{header.name}.jsonl"
