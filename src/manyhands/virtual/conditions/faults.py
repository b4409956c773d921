"""Schedules of faults in a virtual run, written as text.

    [crash(worker=3, at=2.5, restart=1.0), cut(a="worker-0", b="server-1", start=4.0, stop=6.0)]

The text is complete: a run that fails under a schedule fails again under its text.
"""

from __future__ import annotations

import math
import random
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from manyhands.notation import Catalog, Value
from manyhands.sampling.permutation import mix

_NAME = re.compile(r"(worker|server)-(0|[1-9][0-9]{0,8})")
_PURPOSE = 4
"""Purpose for `mix`: random schedules."""


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


@dataclass(frozen=True, repr=False)
class Crash(Fault):
    """A process dies at once, as by `kill -9`.

    A worker loses its state; a server continues from its journal.

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


@dataclass(frozen=True, repr=False)
class Pause(Fault):
    """A process is paused, as by SIGSTOP, and continues later.

    It is not declared lost: its leases stay valid.

    Example: `pause(worker=1, at=2.0, seconds=3.0)`
    """

    name: ClassVar[str] = "pause"

    worker: int | None = None
    """Which worker, or"""
    server: int | None = None
    """which server."""
    at: float = 0.0
    """When, in seconds."""
    seconds: float = 1.0
    """For how long."""

    def __post_init__(self) -> None:
        _check_who(self.worker, self.server)
        _check_moment("at", self.at)
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be above 0, not {self.seconds}")

    def members(self) -> tuple[str, ...]:
        """The process that is paused."""
        return (_who(self.worker, self.server),)


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
class _Schedule(Value):
    """A list of faults with a name, which the notation requires."""

    name: ClassVar[str] = "faults"

    faults: tuple[Fault, ...] = ()
    """The faults."""


_KINDS: Catalog[Fault] = Catalog(
    kind="fault", classes=(Crash, CoordinatorCrash, Pause, Cut, Lose, Isolate)
)
_SCHEDULES: Catalog[_Schedule] = Catalog(
    kind="schedule of faults", classes=(_Schedule,), nested=(_KINDS,)
)


@dataclass(frozen=True)
class Faults:
    """A schedule: all faults of one run. `str` returns its text.

    Example:
        >>> import manyhands as mh
        >>> mh.Faults.read("crash(worker=3, at=2.5)") == mh.Faults((mh.virtual.Crash(3, at=2.5),))
        True
    """

    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.faults))}]"

    @classmethod
    def read(cls, source: str | Faults) -> Faults:
        """The schedule that a text describes; a single fault needs no brackets.

        Raises:
            NotationError: the text is malformed; the message says where and what to write.
        """
        if isinstance(source, Faults):
            return source
        text = source.strip()
        listed = text if text.startswith("[") else f"[{text}]"
        return cls(_SCHEDULES.read(f"faults({listed})").faults)

    @classmethod
    def draw(cls, seed: int, workers: int, servers: int, horizon: float) -> Faults:
        """A random schedule of 1 to 8 faults within `horizon` seconds.

        Servers and worker 0 are always restarted, so that every run can finish.
        """
        rng = random.Random(mix(seed, _PURPOSE))  # noqa: S311 - not for secrets
        return cls(tuple(_draw(rng, workers, servers, horizon) for _ in range(rng.randint(1, 8))))

    def check(self, workers: int, servers: int, *, peers: bool = False) -> None:
        """Raise ValueError if a fault names a process or a link that the run does not have.

        There are links between two workers only in protocols with peer servers.
        """
        sizes = {"worker": workers, "server": servers}
        for fault in self.faults:
            if isinstance(fault, Isolate) and (peers or not servers):
                raise ValueError(
                    f"{fault} needs a strategy with separate servers: use cut or crash"
                )
            if isinstance(fault, Cut) and fault.is_between_peers and not peers:
                raise ValueError(
                    f"{fault} names two workers, which exchange no messages under this strategy: "
                    "cut the link between a worker and a server"
                )
            for name in fault.members():
                role, _, number = name.partition("-")
                if int(number) >= sizes[role]:
                    raise ValueError(
                        f"{fault} names {name}, and the run has {sizes[role]} {role}s, "
                        "numbered from 0"
                    )


def _draw(rng: random.Random, workers: int, servers: int, horizon: float) -> Fault:
    worker, server = rng.randrange(workers), rng.randrange(max(1, servers))
    at = round(rng.uniform(0, horizon), 3)
    seconds = max(0.001, round(rng.expovariate(10 / horizon), 3))
    match rng.choice(("worker", "worker", "server", "pause", "pause server", "cut")):
        case "worker":
            stays_away = worker > 0 and rng.random() < 0.3
            return Crash(worker=worker, at=at, restart=None if stays_away else seconds)
        case "server":
            return Crash(server=server, at=at, restart=seconds)
        case "pause":
            return Pause(worker=worker, at=at, seconds=seconds)
        case "pause server":
            return Pause(server=server, at=at, seconds=seconds)
        case _:
            return Cut(f"worker-{worker}", f"server-{server}", at, round(at + seconds, 3))


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
