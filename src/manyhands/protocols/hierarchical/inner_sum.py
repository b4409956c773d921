"""Decisions of an island's server that forwards sums of gradients.

An island's server sums the gradients of its workers, each weighted by its samples. When all have
contributed, one of them, the carrier, takes the sum to the outer server and returns the parameters
after its step. The island's server keeps the sum until then: if the carrier is lost, another worker
takes the same sum with the same number, and it is counted once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import UNSET

from manyhands.endpoint import Change, Parameters, Push, Rest
from manyhands.protocols.actions import Action, Add, Answer, Call, Drop, Move, unused_in
from manyhands.protocols.parts.rounds import Round
from manyhands.protocols.synchronous import Synchronous

if TYPE_CHECKING:
    from manyhands.protocols.protocol import ServerState


@dataclass(frozen=True)
class InnerSumRound(Round):
    """State of an island's server that sums; its version is that of the outer server."""

    number: int = 0
    """The number of the current sum."""
    carrier: str = ""
    """The worker that takes the sum to the outer server."""
    joins: tuple[Call, ...] = ()
    """Calls of joining workers, answered when the carrier returns."""
    unsure: bool = False
    """Whether a sum was lost with all its contributors, possibly after delivery: parameters that
    were read before may then be older than the outer server's."""


class InnerSum(Synchronous):
    """Rounds whose sum is forwarded to the outer server instead of applied."""

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Sum gradients; a joining worker, or the returning carrier, brings parameters."""
        assert isinstance(state, InnerSumRound)
        match call.message:
            # Only of the present carrier: one that was replaced brings the parameters of a step
            # that the island has left.
            case Change(errand="meet") if call.worker == state.carrier:
                return _end(state, call)
            case Change(errand="join"):
                there = replace(
                    state,
                    present=state.present | {call.worker},
                    paused=state.paused - {call.worker},
                )
                return _join(there, call, call.message)
            # A worker that was away when the outer server stepped: its gradient is one of older
            # parameters, and no part of this step.
            case Push(version=version) if version != state.version:
                return state, [Answer(call, Parameters(state.version, applied=False))]
            case Push() | Rest():
                return super().on_message(state, call)
            case _:
                return state, [_answer_now(state, call)]

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """Stop waiting for the worker. If it was the carrier, another one takes the sum."""
        assert isinstance(state, InnerSumRound)
        joins = tuple(call for call in state.joins if call.worker != worker)
        left = replace(state, joins=joins)
        if worker == state.carrier:
            # The carrier's call was answered when it was sent away.
            left = replace(left, carrier="", waiting=left.waiting.without(worker))
            present, paused = left.present - {worker}, left.paused - {worker}
            left = replace(left, present=present, paused=paused)
            return _send(left, []) if left.waiting else _end(replace(left, unsure=True), None)
        return super().on_leave(left, worker)

    def early(self, state: ServerState, call: Call) -> int:
        """The gradients of a round are summed in rank order."""
        late = isinstance(call.message, Push) and call.message.version != state.version
        return 0 if late else super().early(state, call)

    def on_repeat(self, state: ServerState, call: Call) -> Answer:
        """Repeat the errand, if the carrier did not receive it."""
        assert isinstance(state, InnerSumRound)
        away = call.worker == state.carrier and isinstance(call.message, Push)
        said = _errand(state, call) if away else _answer_now(state, call)
        return replace(said, parameters=said.parameters and call.room)

    def _close(self, state: Round, actions: list[Action]) -> tuple[Round, list[Action]]:
        assert isinstance(state, InnerSumRound)
        if state.carrier or len(state.waiting) < len(state.present):
            return state, actions
        if state.waiting:
            return _send(state, actions)
        if not state.gone:
            return state, actions
        # No contributor is left to carry the sum: the samples are leased to other workers.
        after, more = _end(state, None)
        return after, [*actions, *more]


def _join(state: InnerSumRound, call: Call, join: Change) -> tuple[InnerSumRound, list[Action]]:
    """Admit a worker, and take the outer parameters that it brings if they are newer."""
    if state.carrier:
        return replace(state, joins=(*state.joins, call)), []
    if not _is_old(state, join) and (join.version > state.version or state.unsure):
        # The other islands continued without this one: all contributors here are lost.
        return _end(state, call)
    return state, [_answer_now(state, call)]


def _send(state: InnerSumRound, actions: list[Action]) -> tuple[InnerSumRound, list[Action]]:
    """Send one of the contributors to the outer server with the sum."""
    call = state.waiting.values()[0]
    away = replace(state, carrier=call.worker)
    return away, [*actions, _errand(away, call)]


def _errand(state: InnerSumRound, call: Call) -> Answer:
    said = Parameters(
        state.version,
        errand="meet",
        samples=state.samples,
        mass=state.shares,
        dealt=state.dealt,
        number=state.number,
        unused=_unused(state) or UNSET,
    )
    return Answer(call, said, parameters=state.samples > 0, gathered=True)


def _unused(state: InnerSumRound) -> tuple[int, ...]:
    """The parameters that have a gradient in no update of the sum."""
    pushes = [call.message for call in (*state.gone, *state.waiting.values())]
    given = [unused_in(one) for one in pushes if isinstance(one, Push) and one.samples]
    return tuple(sorted(frozenset.intersection(*given))) if given else ()


def _end(state: InnerSumRound, call: Call | None) -> tuple[InnerSumRound, list[Action]]:
    """Begin the next sum, with the parameters of a call or with the current ones.

    The last sum has been applied if its carrier returned, and never will be otherwise.
    """
    applied = bool(state.carrier)
    answered = [one for one in state.waiting.values() if one.worker != state.carrier]
    # Kept until here, so that another worker could have taken the same sum if the carrier had been
    # lost.
    begun: list[Action] = [Drop(0)] if state.samples else []
    there = (state.present, state.paused)
    now = InnerSumRound(state.terms, state.version, *there, number=state.number + 1)
    now = replace(now, unsure=call is None and state.unsure)
    if call is not None and isinstance(call.message, Change):
        now = replace(now, version=call.message.version)
        begun += [Add(call, 1.0, pot=1), Move(by=1.0, over=1.0, pots=(1,)), _answer_now(now, call)]
    said = Parameters(now.version, applied=applied)
    answers = [Answer(one, said) for one in (*state.gone, *answered)]
    return now, [*begun, *answers, *(_answer_now(now, one) for one in state.joins)]


def _answer_now(state: InnerSumRound, call: Call) -> Answer:
    """The answer to a present worker; a worker with outdated parameters has to join again."""
    match call.message:
        case Change(errand="join") as join if join.version > state.version or _is_old(state, join):
            said = Parameters(state.version, errand="join", number=state.number)
            return Answer(call, said)
        case _:
            return Answer(call, Parameters(state.version))


def _is_old(state: InnerSumRound, join: Change) -> bool:
    """Whether a joining worker may have read parameters from before a lost sum was applied."""
    return state.unsure and join.number != state.number
