"""Program of a step: what a worker computes, exchanges and waits for, in order.

Computing is given in shares of the time of a worker's part of a batch. A collective begins when a
share of it has been computed, and goes on beside the computation, up to the share that needs its
result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

FORWARD: Final = 1 / 3
"""Share of the forward pass in the time of a batch; a backward pass takes twice as long."""


@dataclass(frozen=True, slots=True)
class ComputeShare:
    """Compute for a share of the time of the worker's part of a batch."""

    share: float


@dataclass(frozen=True, slots=True)
class BeginCollective:
    """Begin a collective, without waiting."""

    key: int
    """Its number in the program."""
    kind: str
    """As of `costs.Collective`."""
    size: int
    """Bytes, as of `costs.Collective`."""
    ranks: tuple[int, ...]
    """The workers that take part."""


@dataclass(frozen=True, slots=True)
class EndCollective:
    """Wait for a collective that was begun."""

    key: int


@dataclass(frozen=True, slots=True)
class GiveMessage:
    """Send a message to another worker, without waiting."""

    to: int
    size: int
    """Bytes."""
    tag: tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class TakeMessage:
    """Wait for a message of another worker."""

    sender: int
    tag: tuple[str, int, int]


Instruction: TypeAlias = ComputeShare | BeginCollective | EndCollective | GiveMessage | TakeMessage


@dataclass(frozen=True)
class StepProgram:
    """What every worker does at the start of a run, and in every step."""

    ranks: tuple[tuple[Instruction, ...], ...]
    """By worker, the instructions of a step."""
    start: tuple[BeginCollective, ...] = ()
    """Collectives of all workers before the first step, one after another."""
    interval: Callable[[int], int] | None = None
    """Steps between two synchronisations of replicas, after so many steps of the run; None for
    never."""
    outer: tuple[BeginCollective, ...] = ()
    """By worker, the collective by which they do."""
    coding: tuple[float, float] = (0.0, 0.0)
    """Seconds that each worker encodes before it, and decodes after it."""

    def is_due(self, steps: int, alone: int) -> bool:
        """Whether replicas synchronise after so many steps, `alone` of them since the last time."""
        return self.interval is not None and alone >= self.interval(steps)


@dataclass(frozen=True, slots=True)
class TimedCollective:
    """A collective, with the shares of a step's computation between which it may take its time."""

    kind: str
    size: int
    begin: float
    """It begins when this share has been computed."""
    until: float
    """The worker computes no further than this share before it has ended."""
    among: int = 0
    """Number of workers that take part; 0 for all."""
    stride: int = 1
    """Difference between their ranks."""


def waiting(kind: str, size: int, at: float, among: int = 0, stride: int = 1) -> TimedCollective:
    """A collective for which the worker waits as soon as it has begun.

    >>> waiting("allreduce", 100, 0.5).until
    0.5
    """
    return TimedCollective(kind, size, at, at, among, stride)


def evenly(count: int, begin: float, end: float) -> Iterator[float]:
    """Shares from `begin` to `end` at which so many collectives begin, the last one at the end.

    >>> [*evenly(2, 0.0, 1.0)]
    [0.5, 1.0]
    """
    for number in range(count):
        yield begin + (end - begin) * (number + 1) / count


def overlapped(sizes: Sequence[tuple[str, int]], begin: float) -> list[TimedCollective]:
    """Collectives on gradients that a backward pass completes, in proportion to their bytes.

    Args:
        sizes: kind and bytes of each, in order.
        begin: the share at which the backward pass begins.

    >>> [one.begin for one in overlapped([("allreduce", 30), ("allreduce", 10)], begin=0.5)]
    [0.875, 1.0]
    """
    total = sum(size for _, size in sizes) or 1
    made, done = [], 0
    for kind, size in sizes:
        done += size
        at = min(1.0, begin + (1 - begin) * done / total)
        made.append(TimedCollective(kind, size, at, 1.0))
    return made


def instructions(
    collectives: Iterable[TimedCollective], rank: int, workers: int
) -> tuple[Instruction, ...]:
    """The instructions of a worker, given its collectives in the order in which they begin.

    >>> [type(one).__name__ for one in instructions([waiting("allreduce", 8, 0.5)], 0, 2)]
    ['ComputeShare', 'BeginCollective', 'EndCollective', 'ComputeShare']
    """
    moments: list[tuple[float, int, Instruction]] = []
    for key, one in enumerate(collectives):
        among = one.among or workers
        if among == 1:
            continue
        first = rank - rank // one.stride % among * one.stride
        ranks = _ranks(first, among, one.stride)
        moments.append((one.begin, key, BeginCollective(key, one.kind, one.size, ranks)))
        moments.append((max(one.begin, one.until), key, EndCollective(key)))
    found: list[Instruction] = []
    done = 0.0
    # Of one moment, in the order of the collectives; what a collective begins comes before its end.
    for share, _, instruction in sorted(moments, key=lambda moment: moment[:2]):
        if share > done:
            found.append(ComputeShare(share - done))
            done = share
        found.append(instruction)
    if done < 1:
        found.append(ComputeShare(1 - done))
    return tuple(found)


def moved(steps: Iterable[Instruction], by: int) -> tuple[Instruction, ...]:
    """The same instructions of a worker whose rank is higher by so many, with its own peers.

    >>> moved([GiveMessage(1, 8, ("", 0, 0))], 4)[0].to
    5
    """
    found: list[Instruction] = []
    for one in steps:
        match one:
            case BeginCollective(ranks=ranks):
                found.append(replace(one, ranks=_ranks_of(ranks, by)))
            case GiveMessage(to=to):
                found.append(replace(one, to=to + by))
            case TakeMessage(sender=sender):
                found.append(replace(one, sender=sender + by))
            case _:
                found.append(one)
    return tuple(found)


@lru_cache(maxsize=4096)
def _ranks_of(ranks: tuple[int, ...], by: int) -> tuple[int, ...]:
    """Higher ranks: one tuple for all that take part."""
    return tuple(rank + by for rank in ranks)


@lru_cache(maxsize=4096)
def _ranks(first: int, among: int, stride: int) -> tuple[int, ...]:
    """The workers of a collective: one tuple for all that take part."""
    return tuple(range(first, first + among * stride, stride))


def program_of(
    collectives: Sequence[TimedCollective],
    workers: int,
    start: Iterable[tuple[str, int]] = (),
) -> StepProgram:
    """The program of workers that all have the same collectives.

    Args:
        collectives: in the order in which they begin.
        workers: number of workers.
        start: kind and bytes of the collectives before the first step.
    """
    ranks = tuple(instructions(collectives, rank, workers) for rank in range(workers))
    return StepProgram(ranks, start_of(start, workers))


def start_of(start: Iterable[tuple[str, int]], workers: int) -> tuple[BeginCollective, ...]:
    """The collectives of all workers before the first step."""
    if workers == 1:
        return ()
    everyone = tuple(range(workers))
    return tuple(
        BeginCollective(-1 - number, kind, size, everyone)
        for number, (kind, size) in enumerate(start)
    )
