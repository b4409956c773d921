"""Bytes that a collective puts on the wire, by the algorithms that c10d's backends use."""

from dataclasses import dataclass
from typing import Literal, assert_never


@dataclass(frozen=True)
class Collective:
    """One collective operation: its kind and its size in bytes."""

    kind: Literal["all_gather", "all_to_all", "allreduce", "broadcast", "reduce_scatter", "send"]
    size: int
    """Bytes of the larger side: the output of an all_gather, the input of a reduce_scatter."""
    workers: int = 0
    """Number of participants; 0 for all workers."""


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
            return 2 * collective.size * share
        case "all_gather" | "all_to_all" | "broadcast" | "reduce_scatter":
            return collective.size * share
        case "send":
            return collective.size / workers
        case _:
            assert_never(collective.kind)
