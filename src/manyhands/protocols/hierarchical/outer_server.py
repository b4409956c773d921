"""Decisions of the outer server that synchronises parameters: it treats each island as a worker."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from manyhands.endpoint import Parameters, Pull, Rest
from manyhands.protocols.actions import Action, Answer, Call
from manyhands.protocols.parts.rounds import Round

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.endpoint import Terms
    from manyhands.protocols.averaging import LocalSteps
    from manyhands.protocols.protocol import ServerState
    from manyhands.protocols.synchronous import Synchronous


@dataclass(frozen=True)
class OuterRound(Round):
    """State of the outer server: a round whose workers are the islands."""

    island_of: dict[str, str] = field(default_factory=dict)
    """By worker, its island."""
    representatives: dict[str, str] = field(default_factory=dict)
    """By island, the worker that called for it last, or will first."""
    idle: frozenset[str] = frozenset()
    """Workers that rest or are lost, and have not called since."""


def begin_outer(terms: Terms, islands: Sequence[range]) -> OuterRound:
    """Wait for all islands, given as ranges of ranks."""
    island_of = {
        f"worker-{rank}": f"island-{island}"
        for island, ranks in enumerate(islands)
        for rank in ranks
    }
    representatives = {home: worker for worker, home in reversed(island_of.items())}
    known = replace(terms, workers=len(islands))
    return OuterRound(
        known,
        present=frozenset(representatives),
        island_of=island_of,
        representatives=representatives,
    )


def on_outer(outer: LocalSteps, state: OuterRound, call: Call) -> tuple[OuterRound, list[Action]]:
    """Handle a call, whose sender represents its island."""
    if isinstance(call.message, Pull) and call.message.looks:
        return state, [Answer(call, Parameters(state.version))]
    island = state.island_of[call.worker]
    if isinstance(call.message, Rest):
        heard = replace(state, idle=state.idle | {call.worker})
        # The others of the island still compute: the round has to wait for the island.
        if not _is_idle(heard, island):
            return heard, [Answer(call, Parameters(state.version), parameters=False)]
    else:
        representatives = {**state.representatives, island: call.worker}
        heard = replace(state, representatives=representatives, idle=state.idle - {call.worker})
    after, actions = outer.on_message(heard, replace(call, stands_for=island))
    assert isinstance(after, OuterRound)
    return after, actions


def left_outer(
    outer: LocalSteps, state: OuterRound, worker: str
) -> tuple[OuterRound, list[Action]]:
    """Handle the loss of a worker.

    If it represented its island, or was the island's last worker that did not rest, rounds go on
    without the island until another of its workers calls.
    """
    island = state.island_of[worker]
    left = replace(state, idle=state.idle | {worker})
    if state.representatives[island] != worker and not _is_idle(left, island):
        return left, []
    after, actions = outer.on_leave(left, island)
    assert isinstance(after, OuterRound)
    return after, actions


def early_in(inner: Synchronous, outer: LocalSteps, state: ServerState, call: Call) -> int:
    """How many pushes, of an island's workers or of islands, should be handled before this one."""
    if not isinstance(state, OuterRound):
        return inner.early(state, call)
    island = state.island_of.get(call.worker, "")
    return outer.early(state, replace(call, stands_for=island)) if island else 0


def _is_idle(state: OuterRound, island: str) -> bool:
    return all(worker in state.idle for worker, home in state.island_of.items() if home == island)
