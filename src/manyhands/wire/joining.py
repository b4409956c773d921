"""Control messages by which other hosts join a run and take part in it."""

from manyhands.wire.message import Message


class Knock(Message, frozen=True):
    """Another host's agent asks to be let in."""

    host: str
    workers: int | None
    """How many it will have, if it was told."""
    facts: dict[str, str]
    """What must be the same on all hosts, as far as it knows."""


class Admitted(Message, frozen=True):
    """It is: here is what the run's first host tells its own processes, as JSON."""

    number: int
    """Which of the hosts it is."""
    assignment: bytes
    admission: int = 0
    """How many agents this run has let in before."""


class Rejected(Message, frozen=True):
    """It is not, and why."""

    words: str


class Withdraw(Message, frozen=True):
    """A host that was let in cannot take part, and why."""

    words: str


class Ended(Message, frozen=True):
    """A process of another host has ended."""

    name: str
    host: str
    pid: int
    code: int
    """Its exit code; negative for a signal."""
    report: bytes = b""
    """What it left behind if it failed, as JSON."""
    words: str = ""
    """Why it counts as ended, if nobody saw it end."""
    life: int = 0
    """Which incarnation of it; 0 if that is not known."""
    at: float = 0.0
    """When it ended, on the coordinator's clock."""


class HostReturned(Message, frozen=True):
    """For the first host's agent: a host has come back to a run that is under way."""

    host: str


class Missed(Message, frozen=True):
    """For the first host's agent: the coordinator knows that a worker is lost."""

    name: str
    begun: bool
    """Whether all workers had joined by then. If not, the run waits for its successor."""


class Part(Message, frozen=True):
    """A piece of a file that belongs into the run's folder."""

    name: str
    offset: int
    size: int
    """Of the whole file."""
    piece: bytes


class Stored(Message, frozen=True):
    """So much of the file is there."""

    name: str
    upto: int


class Disband(Message, frozen=True):
    """The run is over, for all hosts."""

    failed: bool
    words: str


Joining = (
    Knock | Admitted | Rejected | Withdraw | Ended | HostReturned | Missed | Part | Stored | Disband
)
