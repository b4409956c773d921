"""The records a trace consists of, one JSON array to a line, its tag first.

    ["header",1,"worker",0,"hostA",4711,"6f1c…",812.25,1760000000.5,"live"]
    ["span","compute",812.31,0.0123,0]

Arrays rather than objects, because spans are most of a trace and the field names would be half of
every span. New fields go at the end of a record with a default, new records get a new tag: an
older reader skips what it does not know and counts it. Times are seconds of the writing process's
own clock; `read` puts them on one clock.

Records marked *cumulative* hold everything since the process began: the last one counts.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

FORMAT: Final = 1
"""The version of the format that this code writes, and the newest that it reads."""

Kind = Literal[
    "compute", "exchange", "wait", "send", "receive", "encode", "data", "evaluate", "start"
]
"""What a process can spend time on.

`exchange` is the time a worker was exposed to a collective: its own gradients were ready and the
reduced ones were not yet. What of that was waiting for the slowest is known only when all workers'
traces are read together. `start` is everything before the first step.
"""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


class _Record(msgspec.Struct, frozen=True, array_like=True, tag=str.lower):
    """What all records share: immutable, an array on its line, tagged with its name."""


class Header(_Record, frozen=True, kw_only=True):
    """Who writes. The first line of a file, and again when a restarted process appends to it."""

    format: int = FORMAT
    role: str
    """`worker`, `server`, `coordinator` or `agent`."""
    rank: int = 0
    """The number among processes of this role; an agent's is its host's."""
    host: str
    pid: int
    boot: str
    """The kernel's boot id: processes that share it share CLOCK_MONOTONIC."""
    clock: float
    """The process's clock, and"""
    wall: float
    """the unix time, at the same moment."""
    kind: Literal["live", "virtual"] = "live"

    @property
    def name(self) -> str:
        """`worker-0`, `server-1`; `coordinator` and `agent` carry a number only beyond the first.

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
    """Exact sums, whatever the sampling of spans. Cumulative."""

    at: float
    steps: int
    samples: int
    seconds: dict[str, float]
    """By kind of span. Any word is read, so that a kind added later does not cost the totals."""
    sent: dict[str, int]
    """Bytes by peer, as in `worker-3`; of many peers those with most, and `others` for the rest."""
    received: dict[str, int]


class Point(_Record, frozen=True, gc=False):
    """A value over time and samples: `loss` of training, or `validation/accuracy` and the like."""

    at: float
    name: str
    value: float | None
    """None where it was NaN or infinite, which JSON cannot say."""
    samples: int
    """Samples trained on so far: by the run for a validation metric, which one process writes for
    all; by the writer for the training loss, which each worker writes of its own samples."""
    weight: float
    """How many samples the value averages."""


class Staleness(_Record, frozen=True):
    """How many of the applied updates were how many versions old. Cumulative."""

    at: float
    counts: dict[int, int]


class SenderStaleness(_Record, frozen=True):
    """As `Staleness`, of the updates of one sender. Cumulative for each sender."""

    at: float
    sender: str
    """Who computed the updates, as in `worker-3`."""
    counts: dict[int, int]


class SampleCount(_Record, frozen=True, gc=False, tag="samples"):
    """Samples this process answers for; the run's are the sum over processes. Cumulative."""

    at: float
    seen: int
    repeated: int
    lost: int


class Event(_Record, frozen=True):
    """Something that happened, rarely: membership, checkpoints, failures.

    Reports know these; other words are shown as they stand:

    `epoch`       an epoch ended; its `number`, the `samples` the run has trained on so far and,
                  where evaluation is not to count, the `seconds` it took; written by one process
    `divided`     how the model was divided among the workers: by number, a line for every part
    `trained`     a worker is through with training; what it still does is not counted
    `parameters`  the final parameters' `sha256`
    `end`         how the run ended: `status` finished, failed or interrupted, and `words`; written
                  by the agent, by the coordinator if the agent was killed, or by worker 0 where
                  there is neither
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
    """The header of this very process. `clock` must be CLOCK_MONOTONIC (`time.monotonic`).

    The host's own name is used unless the run has another for it.
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
    """Where that process's trace belongs in the run's folder. Open it to append, in binary."""
    return folder / "trace" / f"{header.name}.jsonl"
