"""What the server between the islands of a hierarchy decides: each island is a worker to it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from manyhands.endpoint import Parameters, Pull, Rest
from manyhands.protocols.actions import Action, Answer, Call
from manyhands.protocols.parts.rounds import Round

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.endpoint import Terms
    from manyhands.protocols.averaging import Meeting
    from manyhands.protocols.protocol import ServerState
    from manyhands.protocols.synchronous import Synchronous


@dataclass(frozen=True)
class Between(Round):
    """A server between the islands, to which each of them is one worker."""

    homes: dict[str, str] = field(default_factory=dict)
    """By worker, its island."""
    speakers: dict[str, str] = field(default_factory=dict)
    """By island, the worker that spoke for it last, or will first."""
    idle: frozenset[str] = frozenset()
    """Workers that rest or are gone, and have not spoken since."""


def begin_between(terms: Terms, islands: Sequence[range]) -> Between:
    """Wait for all islands, of which these are the ranks."""
    homes = {
        f"worker-{rank}": f"island-{island}"
        for island, ranks in enumerate(islands)
        for rank in ranks
    }
    speakers = {home: worker for worker, home in reversed(homes.items())}
    known = replace(terms, workers=len(islands))
    return Between(known, present=frozenset(speakers), homes=homes, speakers=speakers)


def on_between(outer: Meeting, state: Between, call: Call) -> tuple[Between, list[Action]]:
    """What a server between the islands does about a call, which stands for an island."""
    if isinstance(call.message, Pull) and call.message.looks:
        return state, [Answer(call, Parameters(state.version))]
    island = state.homes[call.worker]
    if isinstance(call.message, Rest):
        heard = replace(state, idle=state.idle | {call.worker})
        if not _is_idle(heard, island):
            return heard, [Answer(call, Parameters(state.version), parameters=False)]
    else:
        speakers = {**state.speakers, island: call.worker}
        heard = replace(state, speakers=speakers, idle=state.idle - {call.worker})
    after, actions = outer.on_message(heard, replace(call, stands_for=island))
    assert isinstance(after, Between)
    return after, actions


def left_between(outer: Meeting, state: Between, worker: str) -> tuple[Between, list[Action]]:
    """What it does when a worker is gone.

    If it spoke for its island, or was the last there that did not rest, the island is waited for
    again when another one speaks for it.
    """
    island = state.homes[worker]
    left = replace(state, idle=state.idle | {worker})
    if state.speakers[island] != worker and not _is_idle(left, island):
        return left, []
    after, actions = outer.on_leave(left, island)
    assert isinstance(after, Between)
    return after, actions


def early_in(inner: Synchronous, outer: Meeting, state: ServerState, call: Call) -> int:
    """How many pushes come before one: of an island's workers, or of the islands."""
    if not isinstance(state, Between):
        return inner.early(state, call)
    island = state.homes.get(call.worker, "")
    return outer.early(state, replace(call, stands_for=island)) if island else 0


def _is_idle(state: Between, island: str) -> bool:
    return all(worker in state.idle for worker, home in state.homes.items() if home == island)
