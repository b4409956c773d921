"""Round-robin order: which worker's turn it is to exchange with the centre."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from manyhands.endpoint import Parameters
from manyhands.protocols.actions import Action, Answer, Call
from manyhands.protocols.parts.persistent_map import PersistentMap
from manyhands.protocols.parts.rank_order import sorted_ranks
from manyhands.protocols.parts.rounds import Round

if TYPE_CHECKING:
    from manyhands.protocols.protocol import ServerState


@dataclass(frozen=True)
class RoundRobin(Round):
    """The turns of workers, for `order=round_robin`."""

    last: int = -1
    """The rank of the worker that had the last turn."""
    asking: PersistentMap[Call | None] = field(default_factory=PersistentMap)
    """By worker, the call that waits for a turn; None if there is none."""
    busy: str | None = None
    """The worker whose turn it is."""


def next_turn(state: ServerState, actions: list[Action]) -> tuple[RoundRobin, list[Action]]:
    """Give the turn to the next present worker, if it has asked for it."""
    assert isinstance(state, RoundRobin)
    ranks = sorted_ranks(state.present)
    if state.busy is not None or not ranks:
        return state, actions
    after = bisect_right(ranks, state.last)
    rank = ranks[after] if after < len(ranks) else ranks[0]
    name = f"worker-{rank}"
    call = state.asking.get(name, None)
    if call is None:
        return state, actions
    go = Answer(call, Parameters(state.version), parameters=False)
    return replace(state, last=rank, busy=name, asking=state.asking.put(name, None)), [*actions, go]
