"""A hierarchy that sums gradients: what the server between the islands decides.

It waits for the sum of every island, adds them up in the order of islands, and takes one step with
the mean over all samples. A sum that was brought before is known by its number and counts once.
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
class Uniting(Round):
    """A server to which each island is one worker, whichever of its workers brings its sum."""

    homes: dict[str, str] = field(default_factory=dict)
    """By worker, its island."""
    idle: frozenset[str] = frozenset()
    """Workers that rest or are gone, and have not spoken since."""
    counted: dict[str, int] = field(default_factory=dict)
    """By island, the number of the last of its sums that counts or is void."""


def begin_uniting(terms: Terms, islands: Sequence[range]) -> Uniting:
    """Wait for all islands, of which these are the ranks."""
    homes = {
        f"worker-{rank}": f"island-{island}"
        for island, ranks in enumerate(islands)
        for rank in ranks
    }
    known = replace(terms, workers=len(islands))
    return Uniting(known, present=frozenset(homes.values()), homes=homes)


class Unites(Synchronous):
    """Rounds of sums: what is given has been multiplied by its samples already."""

    def gather(self, state: Round, call: Call, share: float) -> list[Action]:
        """A sum counts as it is."""
        return [Add(call, 1.0, staleness=staleness_of(state, call))] if share else []

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Hear a worker for its island."""
        assert isinstance(state, Uniting)
        if isinstance(call.message, Pull) and call.message.looks:
            return state, [Answer(call, Parameters(state.version))]
        island = state.homes[call.worker]
        spoken = replace(call, stands_for=island)
        if isinstance(call.message, Rest):
            heard = replace(state, idle=state.idle | {call.worker})
            if not _is_idle(heard, island):
                return heard, [Answer(call, Parameters(state.version), parameters=False)]
            return super().on_message(heard, spoken)
        heard = replace(state, idle=state.idle - {call.worker})
        match call.message:
            case Push() if _counts(state, call):
                return _again(heard, spoken)
            case Push(number=number):
                heard = replace(heard, counted={**state.counted, island: number})
            case Pull(number=number) if number:
                heard = _void(heard, island, number - 1)
        return super().on_message(heard, spoken)

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """Wait for its island no longer, if it was the last there that did not rest."""
        assert isinstance(state, Uniting)
        left, island = replace(state, idle=state.idle | {worker}), state.homes[worker]
        return super().on_leave(left, island) if _is_idle(left, island) else (left, [])

    def early(self, state: ServerState, call: Call) -> int:
        """Sums are added up in the order of islands."""
        assert isinstance(state, Uniting)
        island = state.homes.get(call.worker, "")
        if not island or _counts(state, call):
            return 0
        return super().early(state, replace(call, stands_for=island))


def _counts(state: Uniting, call: Call) -> bool:
    """Whether a call brings a sum that was brought before, or is void."""
    if not isinstance(call.message, Push):
        return False
    return call.message.number <= state.counted.get(state.homes[call.worker], -1)


def _void(state: Uniting, island: str, number: int) -> Uniting:
    """An island lost its sums up to a number, and begins another one at what is here now.

    What it gave to this round counts, but does not stand for the one that it will give.
    """
    if state.counted.get(island, -1) > number:
        return state
    if island in state.waiting:
        gone = (*state.gone, state.waiting[island])
        state = replace(state, waiting=state.waiting.without(island), gone=gone)
    return replace(state, counted={**state.counted, island: number})


def _again(state: Uniting, call: Call) -> tuple[Uniting, list[Action]]:
    """Answer one that brings a sum again when its round is over, in place of the one before it."""
    before = state.waiting.get(call.worker, call)
    if before is call or _number(before) != _number(call):
        return state, [Answer(call, Parameters(state.version))]
    waiting = state.waiting.put(call.worker, call)
    return replace(state, waiting=waiting), [Answer(before, Parameters(state.version))]


def _number(call: Call) -> int:
    return call.message.number if isinstance(call.message, Push) else -1


def _is_idle(state: Uniting, island: str) -> bool:
    return all(worker in state.idle for worker, home in state.homes.items() if home == island)
