"""Schedules of faults: all faults of one run, written as text.

    crash worker 2 at 20 s; stop worker 1 from 30 s to 45 s; cut host b from 60 s to 70 s
    [crash(worker=3, at=2.5, restart=1.0), cut(a="worker-0", b="server-1", start=4.0, stop=6.0)]

Both forms may be mixed, with semicolons between them. `str` writes the second one, which is
complete: a run that fails under a schedule fails again under its text.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from manyhands.faults.fault import KINDS, Crash, Cut, Fault, Isolate, Pause, RandomFaults
from manyhands.faults.sentences import is_sentence, read_sentence, without_units
from manyhands.notation import Catalog, Value
from manyhands.sampling.mixing import mix

_PURPOSE = 4
"""Purpose for `mix`: random schedules."""


@dataclass(frozen=True, repr=False)
class _Schedule(Value):
    """A list of faults with a name, which the notation requires."""

    name: ClassVar[str] = "faults"

    faults: tuple[Fault, ...] = ()
    """The faults."""


_SCHEDULES: Catalog[_Schedule] = Catalog(
    kind="schedule of faults", classes=(_Schedule,), nested=(KINDS,)
)


@dataclass(frozen=True)
class Faults:
    """A schedule: all faults of one run. `str` returns its text.

    Example:
        >>> import manyhands as mh
        >>> mh.Faults.read("crash(worker=3, at=2.5)") == mh.Faults((mh.faults.Crash(3, at=2.5),))
        True
        >>> print(mh.Faults.read("crash worker 2 at 20 s; stop worker 1 from 30 s to 45 s"))
        [crash(worker=2, at=20.0, restart=1.0), pause(worker=1, at=30.0, seconds=15.0)]
    """

    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.faults))}]"

    @property
    def text(self) -> str:
        """The text without brackets, of any length; empty if there are no faults."""
        return "; ".join(map(str, self.faults))

    def __bool__(self) -> bool:
        return bool(self.faults)

    @classmethod
    def read(cls, source: str | Faults) -> Faults:
        """The schedule that a text describes; a single fault needs no brackets.

        Raises:
            NotationError: the text is malformed; the message says where and what to write.
        """
        if isinstance(source, Faults):
            return source
        found: list[Fault] = []
        for part in filter(None, map(str.strip, source.split(";"))):
            if is_sentence(part):
                found.append(read_sentence(part))
                continue
            text = without_units(part)
            listed = text if text.startswith("[") else f"[{text}]"
            found += _SCHEDULES.read(f"faults({listed})").faults
        return cls(tuple(found))

    @classmethod
    def draw(cls, seed: int, workers: int, servers: int, horizon: float) -> Faults:
        """A random schedule of 1 to 8 faults within `horizon` seconds.

        Servers and worker 0 are always restarted, so that every run can finish.
        """
        rng = random.Random(mix(seed, _PURPOSE))  # noqa: S311 - not for secrets
        return cls(tuple(_draw(rng, workers, servers, horizon) for _ in range(rng.randint(1, 8))))

    def drawn(self, workers: int, servers: int) -> tuple[Fault, ...]:
        """The faults, with random ones drawn for a run with so many workers and servers."""
        return tuple(
            one
            for fault in self.faults
            for one in (
                fault.drawn(workers, servers) if isinstance(fault, RandomFaults) else (fault,)
            )
        )

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
                if role in sizes and int(number) >= sizes[role]:
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
