"""Control messages of other hosts that join a run."""

from manyhands.wire.message import Message


class Knock(Message, frozen=True):
    """Request for admission by another host's agent."""

    host: str
    workers: int | None
    """Number of workers on that host, if its user gave one."""
    facts: dict[str, str]
    """Facts that must be equal on all hosts, as far as they are known."""


class Admitted(Message, frozen=True):
    """Answer to `Knock`: the host is admitted, with the first host's assignment as JSON."""

    number: int
    """Index of the host among the hosts of the run."""
    assignment: bytes
    admission: int = 0
    """Number of admissions of this run so far."""


class Rejected(Message, frozen=True):
    """Answer to `Knock`: the host is not admitted, with the reason."""

    words: str


class Withdraw(Message, frozen=True):
    """An admitted host cannot take part, with the reason."""

    words: str


class Ended(Message, frozen=True):
    """A process of another host has ended."""

    name: str
    host: str
    pid: int
    code: int
    """Its exit code; negative for a signal."""
    report: bytes = b""
    """Its error report as JSON, if it failed."""
    words: str = ""
    """Why it counts as ended, if its exit was not observed."""
    life: int = 0
    """Its incarnation number; 0 if that is not known."""
    at: float = 0.0
    """When it ended, on the coordinator's clock."""
    early: bool = False
    """Whether it exited with code 0 before it had done its work."""
    again: bool = False
    """Whether its agent has restarted it."""


class HostReturned(Message, frozen=True):
    """To the first host's agent: a host has rejoined a run that is under way."""

    host: str


class Missed(Message, frozen=True):
    """To the first host's agent: the coordinator has noted that a worker is lost."""

    name: str
    begun: bool
    """Whether all workers had joined by then. If not, the run waits for its successor."""


class Part(Message, frozen=True):
    """A piece of a file for the run's folder."""

    name: str
    offset: int
    size: int
    """Bytes of the whole file."""
    piece: bytes


class Stored(Message, frozen=True):
    """Answer to `Part`: the first `upto` bytes of the file are stored."""

    name: str
    upto: int


class Disband(Message, frozen=True):
    """The run is over, for all hosts."""

    failed: bool
    words: str
    again: bool = False
    """Whether it goes back to a checkpoint: hosts join again, at the same address."""
    rejoins: bool = False
    """Whether the run goes on without this host, which may join it again."""


Joining = (
    Knock | Admitted | Rejected | Withdraw | Ended | HostReturned | Missed | Part | Stored | Disband
)
