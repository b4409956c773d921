"""One after the other: whose turn it is to meet the centre."""

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
class Turns(Round):
    """Whose turn it is, for `order=round_robin`."""

    last: int = -1
    """The rank of who had the last turn."""
    asking: PersistentMap[Call | None] = field(default_factory=PersistentMap)
    """By worker, the call that waits for a turn; None if none does."""
    busy: str | None = None
    """Who is having one."""


def next_turn(state: ServerState, actions: list[Action]) -> tuple[Turns, list[Action]]:
    """Give the turn to the next of those who are there, if it has asked for it."""
    assert isinstance(state, Turns)
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
