"""Faults of processes, links, hosts and disks, as frozen values.

    crash(worker=3, at=2.5, restart=1.0)
    cut_host(host="b", at=60.0, seconds=10.0)

Times are seconds. In a virtual run they count from the start of the virtual clock, in a live run
from the first samples that the run has trained on. Some faults exist in one of the two only: see
`manyhands.faults.live` and `manyhands.virtual.conditions.simulated_faults`.
"""

from __future__ import annotations

import math
import random
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from manyhands.notation import Catalog, Value
from manyhands.sampling.mixing import mix

Way: TypeAlias = Literal["both", "incoming", "outgoing"]
"""Which packets of a host are lost."""

RESTART = 1.0
"""Seconds until a virtual process is restarted, where a sentence does not say; about as live."""
_NAME = re.compile(r"(worker|server)-(0|[1-9][0-9]{0,8})")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,80}")
_PURPOSE = 14
"""Purpose for `mix`: faults at random times."""
_DAY = 86_400.0
_MOST = 100_000
"""The most faults that are drawn for one run."""


@dataclass(frozen=True, repr=False)
class Fault(Value, ABC):
    """A fault of a process or a link.

    Example:
        >>> import manyhands as mh
        >>> mh.virtual.Crash(worker=3, at=2.5, restart=1.0).members()
        ('worker-3',)
    """

    @abstractmethod
    def members(self) -> tuple[str, ...]:
        """Names of the processes that it hits, such as `worker-3`."""

    @property
    def words(self) -> str:
        """What happens, in words and without the time."""
        return str(self)


@dataclass(frozen=True, repr=False)
class Crash(Fault):
    """A process dies at once, as by `kill -9`.

    A worker loses its state; a server continues from its journal. Live, the agent restarts a
    process at once where the strategy allows it, so `restart` says only whether.

    Example: `crash(worker=3, at=2.5, restart=1.0)`
    """

    name: ClassVar[str] = "crash"

    worker: int | None = None
    """Which worker, or"""
    server: int | None = None
    """which server."""
    at: float = 0.0
    """When, in seconds."""
    restart: float | None = None
    """Seconds until it is restarted; none: never, which is possible for workers only."""

    def __post_init__(self) -> None:
        _check_who(self.worker, self.server)
        _check_moment("at", self.at)
        if self.restart is not None:
            _check_moment("restart", self.restart)
        elif self.server is not None:
            raise ValueError("a run cannot continue without a server: set restart, in seconds")

    def members(self) -> tuple[str, ...]:
        """The process that crashes."""
        return (_who(self.worker, self.server),)

    @property
    def words(self) -> str:
        """Which process is killed."""
        (name,) = self.members()
        return f"{name.replace('-', ' ')} is killed"


@dataclass(frozen=True, repr=False)
class CoordinatorCrash(Fault):
    """The coordinator dies at once, as by `kill -9`; its successor continues from its journal.

    Workers and servers carry on meanwhile, as far as they need no new samples.

    Example: `coordinator_crash(at=2.5, restart=1.0)`
    """

    name: ClassVar[str] = "coordinator_crash"

    at: float = 0.0
    """When, in seconds."""
    restart: float = 1.0
    """Seconds until it is restarted."""

    def __post_init__(self) -> None:
        _check_moment("at", self.at)
        _check_moment("restart", self.restart)

    def members(self) -> tuple[str, ...]:
        """No worker and no server."""
        return ()

    @property
    def words(self) -> str:
        """That it is killed."""
        return "the coordinator is killed"


@dataclass(frozen=True, repr=False)
class Pause(Fault):
    """A process is paused by SIGSTOP, and continues later by SIGCONT.

    Live, a worker that is paused for longer than `--patience` is ejected and restarted, if the
    other workers can continue. In a virtual run a pause that ends is not declared a loss, and the
    leases stay valid; one without an end becomes a crash after 30 s.

    Example: `pause(worker=1, at=2.0, seconds=3.0)`
    """

    name: ClassVar[str] = "pause"

    worker: int | None = None
    """Which worker, or"""
    server: int | None = None
    """which server."""
    at: float = 0.0
    """When, in seconds."""
    seconds: float | None = 1.0
    """For how long; none: for ever, which is possible for workers only."""

    def __post_init__(self) -> None:
        _check_who(self.worker, self.server)
        _check_moment("at", self.at)
        _check_length(self.seconds)
        if self.seconds is None and self.server is not None:
            raise ValueError("a run cannot continue without a server: set seconds")

    def members(self) -> tuple[str, ...]:
        """The process that is paused."""
        return (_who(self.worker, self.server),)

    @property
    def words(self) -> str:
        """Which process is stopped, and for how long."""
        (name,) = self.members()
        return f"{name.replace('-', ' ')} is stopped {_how_long(self.seconds)}"


@dataclass(frozen=True, repr=False)
class Cut(Fault):
    """The link between two processes is cut for a while: a worker and a server, or two peers.

    Example: `cut(a="worker-0", b="server-1", start=4.0, stop=6.0)`
    """

    name: ClassVar[str] = "cut"

    a: str
    """One of the processes."""
    b: str
    """The other process."""
    start: float
    """Begin, in seconds."""
    stop: float
    """End, in seconds."""

    def __post_init__(self) -> None:
        for name in (self.a, self.b):
            if not _NAME.fullmatch(name):
                raise ValueError(f"a process is called worker-0 or server-0, not {name!r}")
        if self.a == self.b or not any(name.startswith("worker") for name in self.members()):
            raise ValueError(
                "expected a worker and a server, or two workers that are peers, got "
                f"{self.a} and {self.b}"
            )
        _check_moment("start", self.start)
        if not self.start < self.stop < math.inf:
            raise ValueError(f"stop must be after start={self.start}, got {self.stop}")

    @property
    def is_between_peers(self) -> bool:
        """Whether it is between two workers, and not a worker and a server."""
        return self.a.startswith("worker") and self.b.startswith("worker")

    def members(self) -> tuple[str, ...]:
        """Both."""
        return (self.a, self.b)


@dataclass(frozen=True, repr=False)
class Lose(Fault):
    """One message is lost: the next that one process sends to the other.

    Example: `lose(a="server-0", b="worker-1", at=2.0)`
    """

    name: ClassVar[str] = "lose"

    a: str
    """The sender."""
    b: str
    """The receiver."""
    at: float = 0.0
    """The earliest time, in seconds."""

    def __post_init__(self) -> None:
        for name in (self.a, self.b):
            if not _NAME.fullmatch(name):
                raise ValueError(f"a process is called worker-0 or server-0, not {name!r}")
        if self.a.partition("-")[0] == self.b.partition("-")[0]:
            raise ValueError(f"expected a worker and a server, got {self.a} and {self.b}")
        _check_moment("at", self.at)

    def members(self) -> tuple[str, ...]:
        """Both."""
        return (self.a, self.b)


@dataclass(frozen=True, repr=False)
class Isolate(Fault):
    """A worker's host is cut off from all other hosts for a while.

    If that takes longer than the detection of a loss, the run continues without the worker. Its
    messages of that time arrive when the link is restored; a second later its process is ended.

    Example: `isolate(worker=2, at=1.0, seconds=9.0, restart=1.0)`
    """

    name: ClassVar[str] = "isolate"

    worker: int
    """Which worker."""
    at: float = 0.0
    """When, in seconds."""
    seconds: float = 1.0
    """For how long."""
    restart: float | None = None
    """Seconds until it is restarted, if it was ended; none: never."""

    def __post_init__(self) -> None:
        _check_who(self.worker, None)
        _check_moment("at", self.at)
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be above 0, not {self.seconds}")
        if self.restart is not None:
            _check_moment("restart", self.restart)

    def members(self) -> tuple[str, ...]:
        """The worker that is cut off."""
        return (_who(self.worker, None),)


@dataclass(frozen=True, repr=False)
class CutHost(Fault):
    """A host is cut off from all other hosts, in both directions or in one.

    Live, the packets of the host are dropped at both ends of its link, in a network that Manyhands
    made (`--network` or `--cluster`).

    Example: `cut_host(host="host-1", at=60.0, seconds=10.0)`
    """

    name: ClassVar[str] = "cut_host"

    host: str
    """The host, by its name in the run."""
    at: float = 0.0
    """When, in seconds."""
    seconds: float | None = None
    """For how long; none: for ever."""
    way: Way = "both"
    """What is lost: what it receives (incoming), what it sends (outgoing), or both."""

    def __post_init__(self) -> None:
        if not _HOST.fullmatch(self.host):
            raise ValueError(f"expected the name of a host, got {self.host!r}")
        _check_moment("at", self.at)
        _check_length(self.seconds)

    def members(self) -> tuple[str, ...]:
        """None: a host is no process."""
        return ()

    @property
    def words(self) -> str:
        """Which host is cut off, and for how long."""
        ways = {"both": "", "incoming": " and receives nothing", "outgoing": " and sends nothing"}
        return f"host {self.host} is cut off {_how_long(self.seconds)}{ways[self.way]}"


@dataclass(frozen=True, repr=False)
class FullDisk(Fault):
    """The disk of the run's folder is full for a while, in live runs.

    It is filled by a file, which is removed at the end. So the folder has to be on a small file
    system of its own.

    Example: `full_disk(at=80.0, seconds=5.0)`
    """

    name: ClassVar[str] = "full_disk"

    at: float = 0.0
    """When, in seconds."""
    seconds: float | None = None
    """For how long; none: until the run ends."""

    def __post_init__(self) -> None:
        _check_moment("at", self.at)
        _check_length(self.seconds)

    def members(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def words(self) -> str:
        """For how long the disk is full."""
        return f"the disk is full {_how_long(self.seconds)}"


@dataclass(frozen=True, repr=False)
class RandomFaults(Fault):
    """Crashes and pauses of workers and servers at random times, one in every interval.

    Half of them are crashes of workers; the others are crashes of servers and pauses of workers.
    The same seed gives the same faults, live and virtually.

    Example: `random(every=15.0, seed=3)`
    """

    name: ClassVar[str] = "random"

    every: float
    """Length of an interval in seconds; one fault is at a random time in each."""
    seed: int = 0
    """Seed of the times and kinds."""
    until: float = _DAY
    """The end of the last interval, in seconds."""
    coordinator: bool = False
    """Whether the coordinator crashes too, as often as servers."""

    def __post_init__(self) -> None:
        if not 0 < self.every < math.inf:
            raise ValueError(f"every must be above 0 seconds, got {self.every}")
        if not 0 < self.until / self.every <= _MOST:
            raise ValueError(
                f"random faults every {self.every:g} s until {self.until:g} s are too many: the "
                f"limit is {_MOST:,}, set until="
            )

    def members(self) -> tuple[str, ...]:
        """Not known before they are drawn."""
        return ()

    def drawn(self, workers: int, servers: int) -> tuple[Fault, ...]:
        """The faults of a run with so many workers and separate servers, in order of time."""
        rng = random.Random(mix(self.seed, _PURPOSE))  # noqa: S311 - not for secrets
        count = max(1, math.floor(self.until / self.every))
        return tuple(self._one(rng, number, workers, servers) for number in range(count))

    def _one(self, rng: random.Random, number: int, workers: int, servers: int) -> Fault:
        kinds = ["worker", "worker", "stop"] + ["server"] * (servers > 0)
        kinds += ["coordinator"] * self.coordinator
        at = round((number + rng.random()) * self.every, 3)
        kind, worker = rng.choice(kinds), rng.randrange(workers)
        seconds = round(self.every * rng.uniform(0.05, 0.3), 3)
        server = rng.randrange(max(1, servers))
        match kind:
            case "worker":
                return Crash(worker=worker, at=at, restart=RESTART)
            case "server":
                return Crash(server=server, at=at, restart=RESTART)
            case "coordinator":
                return CoordinatorCrash(at=at, restart=RESTART)
            case _:
                return Pause(worker=worker, at=at, seconds=max(0.001, seconds))


KINDS: Catalog[Fault] = Catalog(
    kind="fault",
    classes=(Crash, CoordinatorCrash, Pause, Cut, Lose, Isolate, CutHost, FullDisk, RandomFaults),
)
"""The faults that a text may name."""


def _how_long(seconds: float | None) -> str:
    return "for ever" if seconds is None else f"for {seconds:g} s"


def _who(worker: int | None, server: int | None) -> str:
    return f"server-{server}" if worker is None else f"worker-{worker}"


def _check_who(worker: int | None, server: int | None) -> None:
    if (worker is None) == (server is None):
        raise ValueError("expected either a worker or a server, as in worker=3")
    if min(number for number in (worker, server) if number is not None) < 0:
        raise ValueError(f"no such process: {_who(worker, server)}; numbers begin at 0")


def _check_moment(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be 0 or more seconds, got {value}")


def _check_length(seconds: float | None) -> None:
    if seconds is not None and not 0 < seconds < math.inf:
        raise ValueError(f"seconds must be above 0, not {seconds}")
