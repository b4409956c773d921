"""Decisions of the outer server that sums gradients.

It waits for the sum of every island, adds the sums in the order of islands, and takes one step with
the mean over all samples. A sum that arrives twice is recognised by its number and counted once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from manyhands.endpoint import Parameters, Pull, Push, Rest
from manyhands.protocols.actions import Action, Add, Answer, Call
from manyhands.protocols.parts.rounds import Round
from manyhands.protocols.synchronous import Synchronous, staleness_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.endpoint import Terms
    from manyhands.protocols.protocol import ServerState


@dataclass(frozen=True)
class OuterSumRound(Round):
    """State of the outer server: a round whose workers are the islands."""

    island_of: dict[str, str] = field(default_factory=dict)
    """By worker, its island."""
    idle: frozenset[str] = frozenset()
    """Workers that rest or are lost, and have not called since."""
    counted: dict[str, int] = field(default_factory=dict)
    """By island, the number of its last sum that was counted or is void."""


def begin_outer_sum(terms: Terms, islands: Sequence[range]) -> OuterSumRound:
    """Wait for all islands, given as ranges of ranks."""
    island_of = {
        f"worker-{rank}": f"island-{island}"
        for island, ranks in enumerate(islands)
        for rank in ranks
    }
    known = replace(terms, workers=len(islands))
    return OuterSumRound(known, present=frozenset(island_of.values()), island_of=island_of)


class OuterSum(Synchronous):
    """Rounds of sums, which are weighted by samples already."""

    def gather(self, state: Round, call: Call, share: float) -> list[Action]:
        """Add a sum without another weight."""
        return [Add(call, 1.0, staleness=staleness_of(state, call))] if share else []

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Handle a call, whose sender represents its island."""
        assert isinstance(state, OuterSumRound)
        if isinstance(call.message, Pull) and call.message.looks:
            return state, [Answer(call, Parameters(state.version))]
        island = state.island_of[call.worker]
        spoken = replace(call, stands_for=island)
        if isinstance(call.message, Rest):
            heard = replace(state, idle=state.idle | {call.worker})
            if not _is_idle(heard, island):
                return heard, [Answer(call, Parameters(state.version), parameters=False)]
            return super().on_message(heard, spoken)
        heard = replace(state, idle=state.idle - {call.worker})
        match call.message:
            # Another carrier of the same sum: the first one was lost, maybe after it had delivered
            # it.
            case Push() if _counts(state, call):
                return _again(heard, spoken)
            case Push(number=number):
                heard = replace(heard, counted={**state.counted, island: number})
            case Pull(number=number) if number:
                heard = _void(heard, island, number - 1)
        return super().on_message(heard, spoken)

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """Stop waiting for the island, if this was its last worker that did not rest."""
        assert isinstance(state, OuterSumRound)
        left, island = replace(state, idle=state.idle | {worker}), state.island_of[worker]
        return super().on_leave(left, island) if _is_idle(left, island) else (left, [])

    def early(self, state: ServerState, call: Call) -> int:
        """Sums are added in the order of islands."""
        assert isinstance(state, OuterSumRound)
        island = state.island_of.get(call.worker, "")
        if not island or _counts(state, call):
            return 0
        return super().early(state, replace(call, stands_for=island))


def _counts(state: OuterSumRound, call: Call) -> bool:
    """Whether a call brings a sum that was counted before or is void."""
    if not isinstance(call.message, Push):
        return False
    return call.message.number <= state.counted.get(state.island_of[call.worker], -1)


def _void(state: OuterSumRound, island: str, number: int) -> OuterSumRound:
    """Void an island's sums up to a number; it starts another one from the current parameters.

    Its contribution to this round still counts, but the round waits for the next one as well.
    """
    # A later sum of the island was counted meanwhile; this request is an old one.
    if state.counted.get(island, -1) > number:
        return state
    if island in state.waiting:
        gone = (*state.gone, state.waiting[island])
        state = replace(state, waiting=state.waiting.without(island), gone=gone)
    return replace(state, counted={**state.counted, island: number})


def _again(state: OuterSumRound, call: Call) -> tuple[OuterSumRound, list[Action]]:
    """Let a call that repeats a sum take the place of the one before it in the round."""
    before = state.waiting.get(call.worker, call)
    if before is call or _number(before) != _number(call):
        return state, [Answer(call, Parameters(state.version))]
    waiting = state.waiting.put(call.worker, call)
    return replace(state, waiting=waiting), [Answer(before, Parameters(state.version))]


def _number(call: Call) -> int:
    return call.message.number if isinstance(call.message, Push) else -1


def _is_idle(state: OuterSumRound, island: str) -> bool:
    return all(worker in state.idle for worker, home in state.island_of.items() if home == island)
