"""Collective operations as tables of messages: one algorithm per file, without torch.

The virtual cluster sends these messages; `manyhands.costs` has the formulas of their time.

>>> ALLREDUCE["ring"](4).parts
4
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias

from manyhands.collectives.butterfly import butterfly
from manyhands.collectives.by_hosts import by_hosts, local_ranks
from manyhands.collectives.direct import all_to_all, direct_reduce_scatter, one_message
from manyhands.collectives.exchange import ExchangeRound, ExchangeTable, PartMessage
from manyhands.collectives.halving import halving
from manyhands.collectives.program import (
    FORWARD,
    BeginCollective,
    ComputeShare,
    EndCollective,
    GiveMessage,
    Instruction,
    StepProgram,
    TakeMessage,
    TimedCollective,
    evenly,
    instructions,
    moved,
    overlapped,
    program_of,
    start_of,
    waiting,
)
from manyhands.collectives.ring import ring, ring_all_gather, ring_reduce_scatter
from manyhands.collectives.tree import tree, tree_broadcast

AllreduceAlgorithm: TypeAlias = Literal["ring", "tree", "butterfly", "halving"]

ALLREDUCE: Final[Mapping[AllreduceAlgorithm, Callable[[int], ExchangeTable]]] = {
    "ring": ring,
    "tree": tree,
    "butterfly": butterfly,
    "halving": halving,
}
"""By name, the algorithms of an allreduce; the names are those of `costs.BETWEEN_WORKERS`."""

BY_KIND: Final[Mapping[str, Callable[[int], ExchangeTable]]] = {
    "all_gather": ring_all_gather,
    "all_to_all": all_to_all,
    "allreduce": ring,
    "broadcast": tree_broadcast,
    "reduce_scatter": direct_reduce_scatter,
    "send": one_message,
}
"""By kind of `costs.Collective`, the algorithm; it sends the bytes that `costs` computes."""

__all__ = [
    "ALLREDUCE",
    "BY_KIND",
    "FORWARD",
    "AllreduceAlgorithm",
    "BeginCollective",
    "ComputeShare",
    "EndCollective",
    "ExchangeRound",
    "ExchangeTable",
    "GiveMessage",
    "Instruction",
    "PartMessage",
    "StepProgram",
    "TakeMessage",
    "TimedCollective",
    "all_to_all",
    "butterfly",
    "by_hosts",
    "direct_reduce_scatter",
    "evenly",
    "halving",
    "instructions",
    "local_ranks",
    "moved",
    "one_message",
    "overlapped",
    "program_of",
    "ring",
    "ring_all_gather",
    "ring_reduce_scatter",
    "start_of",
    "tree",
    "tree_broadcast",
    "waiting",
]
