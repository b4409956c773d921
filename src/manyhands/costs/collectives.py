"""Bytes that a collective puts on the wire, by the algorithms that c10d's backends use."""

from dataclasses import dataclass
from typing import Literal, assert_never


@dataclass(frozen=True)
class Collective:
    """One collective operation over all workers: what it does and to how many bytes."""

    kind: Literal["allreduce", "broadcast"]
    size: int


def sent_per_worker(collective: Collective, workers: int) -> float:
    """Bytes that one of `workers` sends, on average over them.

    A ring allreduce of m bytes is a reduce-scatter and an allgather, each of which passes every
    chunk P − 1 times: 2·m·(P − 1)/P for each worker. A broadcast tree carries m bytes to each of
    the P − 1 others: m·(P − 1)/P for each worker on average.
    """
    share = (workers - 1) / workers
    match collective.kind:
        case "allreduce":
            return 2 * collective.size * share
        case "broadcast":
            return collective.size * share
        case _:
            assert_never(collective.kind)
