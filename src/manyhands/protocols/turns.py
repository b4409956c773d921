"""One after the other: whose turn it is to meet the centre."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from manyhands.endpoint import Parameters
from manyhands.protocols.actions import Action, Answer, Call
from manyhands.protocols.rounds import Round

if TYPE_CHECKING:
    from manyhands.protocols.protocol import ServerState


@dataclass(frozen=True)
class Turns(Round):
    """Whose turn it is, for `order=round_robin`."""

    last: int = -1
    """The rank of who had the last turn."""
    asking: dict[str, Call] = field(default_factory=dict)
    """Who waits for a turn."""
    busy: str | None = None
    """Who is having one."""


def next_turn(state: ServerState, actions: list[Action]) -> tuple[Turns, list[Action]]:
    """Give the turn to the next of those who are there, if it has asked for it."""
    assert isinstance(state, Turns)
    ranks = sorted(int(name.partition("-")[2]) for name in state.present)
    if state.busy is not None or not ranks:
        return state, actions
    rank = next((rank for rank in ranks if rank > state.last), ranks[0])
    name = f"worker-{rank}"
    if name not in state.asking:
        return state, actions
    asking = {other: call for other, call in state.asking.items() if other != name}
    go = Answer(state.asking[name], Parameters(state.version), parameters=False)
    return replace(state, last=rank, busy=name, asking=asking), [*actions, go]
