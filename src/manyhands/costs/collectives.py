"""Bytes that a collective puts on the wire, by the algorithms that c10d's backends use."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never

CollectiveKind: TypeAlias = Literal[
    "all_gather", "all_to_all", "allreduce", "broadcast", "reduce_scatter", "send"
]


@dataclass(frozen=True)
class Collective:
    """One collective operation: its kind and its size in bytes."""

    kind: CollectiveKind
    size: int
    """Bytes of the larger side: the output of an all_gather, the input of a reduce_scatter."""
    workers: int = 0
    """Number of participants; 0 for all workers."""


def allreduce_bytes(size: float, workers: int) -> float:
    """Bytes that each of P workers sends in an allreduce of m bytes, at least: 2·m·(P − 1)/P.

    >>> allreduce_bytes(400, 4)
    600.0
    """
    return 2 * size * ((workers - 1) / workers)


def sent_per_worker(collective: Collective, workers: int) -> float:
    """Bytes that one of `workers` sends, on average over them.

    A ring allreduce of m bytes is a reduce-scatter and an allgather, each of which passes every
    chunk P − 1 times: 2·m·(P − 1)/P for each worker; either alone is half of that. A broadcast
    tree carries m bytes to each of the P − 1 others: m·(P − 1)/P for each worker on average. In an
    all_to_all a worker keeps one of the P parts of its m bytes and sends the others. A message from
    one worker to another is m/P for each of P workers on average.
    """
    parts = collective.workers or workers
    share = (parts - 1) / parts
    match collective.kind:
        case "allreduce":
            return allreduce_bytes(collective.size, parts)
        case "all_gather" | "all_to_all" | "broadcast" | "reduce_scatter":
            return collective.size * share
        case "send":
            return collective.size / workers
        case _:
            assert_never(collective.kind)


def sent_by_member(collective: Collective) -> float:
    """Bytes that a worker which takes part in a collective sends; a message is its sender's.

    >>> sent_by_member(Collective("allreduce", 400, workers=4))
    600.0
    >>> sent_by_member(Collective("send", 400, workers=2))
    400
    """
    if collective.kind == "send":
        return collective.size
    return sent_per_worker(collective, collective.workers)
