"""What goes wrong in a virtual run, and when: schedules of faults, written as text.

    [crash(worker=3, at=2.5, restart=1.0), cut(a="worker-0", b="server-1", start=4.0, stop=6.0)]

The text says everything, so a run that fails under a schedule fails again under its text.
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
"""What `mix` tells schedules from other uses of a seed by."""


@dataclass(frozen=True, repr=False)
class Fault(Value, ABC):
    """Something that goes wrong."""

    @abstractmethod
    def members(self) -> tuple[str, ...]:
        """Those whom it befalls, as in `worker-3`."""


@dataclass(frozen=True, repr=False)
class Crash(Fault):
    """A process dies at once, as by `kill -9`.

    A worker loses everything; a server keeps what it had decided, as by its journal.

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
    """Seconds until it is started again; none: never, which a run survives only of a worker."""

    def __post_init__(self) -> None:
        _check_who(self.worker, self.server)
        _check_moment("at", self.at)
        if self.restart is not None:
            _check_moment("restart", self.restart)
        elif self.server is not None:
            raise ValueError("a server that never returns ends the run: give restart, in seconds")

    def members(self) -> tuple[str, ...]:
        """The one that dies."""
        return (_who(self.worker, self.server),)


@dataclass(frozen=True, repr=False)
class Pause(Fault):
    """A process stands still, as under SIGSTOP, and goes on where it was.

    Nobody takes it for dead: its samples stay its own.

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
        """The one that stands still."""
        return (_who(self.worker, self.server),)


@dataclass(frozen=True, repr=False)
class Cut(Fault):
    """Two processes do not reach each other for a while: a worker and a server, or two peers.

    Example: `cut(a="worker-0", b="server-1", start=4.0, stop=6.0)`
    """

    name: ClassVar[str] = "cut"

    a: str
    """One of them, and"""
    b: str
    """the other."""
    start: float
    """From when, in seconds,"""
    stop: float
    """until when."""

    def __post_init__(self) -> None:
        for name in (self.a, self.b):
            if not _NAME.fullmatch(name):
                raise ValueError(f"a process is called worker-0 or server-0, not {name!r}")
        if self.a == self.b or not any(name.startswith("worker") for name in self.members()):
            raise ValueError(
                "only a worker and a server, or workers that are peers, exchange messages: "
                f"{self.a}, {self.b}"
            )
        _check_moment("start", self.start)
        if not self.start < self.stop < math.inf:
            raise ValueError(f"stop must be after start, {self.start}, and not {self.stop}")

    @property
    def is_between_peers(self) -> bool:
        """Whether it befalls two workers, and not a worker and a server."""
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
    """Who sends it, and"""
    b: str
    """to whom."""
    at: float = 0.0
    """From when on, in seconds."""

    def __post_init__(self) -> None:
        for name in (self.a, self.b):
            if not _NAME.fullmatch(name):
                raise ValueError(f"a process is called worker-0 or server-0, not {name!r}")
        if self.a.partition("-")[0] == self.b.partition("-")[0]:
            raise ValueError(f"name a worker and a server, not {self.a} and {self.b}")
        _check_moment("at", self.at)

    def members(self) -> tuple[str, ...]:
        """Both."""
        return (self.a, self.b)


@dataclass(frozen=True, repr=False)
class Isolate(Fault):
    """A worker's host is cut off from all others, and its link heals.

    If that takes longer than a loss takes to be noticed, the others go on without the worker. What
    it has sent meanwhile comes when the link heals; a second later its process is ended.

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
    """Seconds until it is started again, if it was ended; none: never."""

    def __post_init__(self) -> None:
        _check_who(self.worker, None)
        _check_moment("at", self.at)
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be above 0, not {self.seconds}")
        if self.restart is not None:
            _check_moment("restart", self.restart)

    def members(self) -> tuple[str, ...]:
        """The one that is cut off."""
        return (_who(self.worker, None),)


@dataclass(frozen=True, repr=False)
class _Schedule(Value):
    """A list of faults, as the notation needs it: with a name."""

    name: ClassVar[str] = "faults"

    faults: tuple[Fault, ...] = ()
    """What goes wrong."""


_KINDS: Catalog[Fault] = Catalog(kind="fault", classes=(Crash, Pause, Cut, Lose, Isolate))
_SCHEDULES: Catalog[_Schedule] = Catalog(
    kind="schedule of faults", classes=(_Schedule,), nested=(_KINDS,)
)


@dataclass(frozen=True)
class Faults:
    """A schedule: everything that goes wrong in one run. `str` gives its text."""

    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.faults))}]"

    @classmethod
    def read(cls, source: str | Faults) -> Faults:
        """The schedule that a text describes; one fault may stand without brackets.

        Raises:
            NotationError: the text is none; the message says where and what to write.
        """
        if isinstance(source, Faults):
            return source
        text = source.strip()
        listed = text if text.startswith("[") else f"[{text}]"
        return cls(_SCHEDULES.read(f"faults({listed})").faults)

    @classmethod
    def draw(cls, seed: int, workers: int, servers: int, horizon: float) -> Faults:
        """A schedule at random, from 1 to 8 faults within `horizon` seconds.

        Servers always return, and so does worker 0, so that every run under it can end.
        """
        rng = random.Random(mix(seed, _PURPOSE))  # noqa: S311 - not for secrets
        return cls(tuple(_draw(rng, workers, servers, horizon) for _ in range(rng.randint(1, 8))))

    def check(self, workers: int, servers: int, *, peers: bool = False) -> None:
        """Raise ValueError if a fault befalls somebody that a run of this size lacks.

        Only in a run of peers can a link between two workers be cut: there is none elsewhere.
        """
        sizes = {"worker": workers, "server": servers}
        for fault in self.faults:
            if isinstance(fault, Isolate) and (peers or not servers):
                raise ValueError(
                    f"{fault} is for strategies with servers, from which a worker is cut off; "
                    "use cut or crash"
                )
            if isinstance(fault, Cut) and fault.is_between_peers and not peers:
                raise ValueError(
                    f"{fault} befalls workers that never exchange messages under this strategy; "
                    "cut the link between a worker and a server"
                )
            for name in fault.members():
                role, _, number = name.partition("-")
                if int(number) >= sizes[role]:
                    raise ValueError(
                        f"{fault} befalls {name}, and the run has {sizes[role]} {role}s, "
                        "counted from 0"
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
        raise ValueError("name either a worker or a server: worker=3")
    if min(number for number in (worker, server) if number is not None) < 0:
        raise ValueError(f"{_who(worker, server)} is no worker: processes count from 0")


def _check_moment(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be 0 or more seconds, not {value}")
