"""A hierarchy that sums gradients: what the server of an island decides.

An island's server adds up its workers' gradients, each times its samples. When all have given, one
of them carries the sum to the server between the islands and brings back the parameters after its
step. The sum stays at the island's server until then: if the carrier is lost, another one carries
the same sum, under the same number, and it counts once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from manyhands.endpoint import Change, Parameters, Push, Rest
from manyhands.protocols.actions import Action, Add, Answer, Call, Drop, Move
from manyhands.protocols.parts.rounds import Round
from manyhands.protocols.synchronous import Synchronous

if TYPE_CHECKING:
    from manyhands.protocols.protocol import ServerState


@dataclass(frozen=True)
class Gathering(Round):
    """The server of an island that sums: its version is that of the server between the islands."""

    number: int = 0
    """Of the sum that is being gathered."""
    carrier: str = ""
    """Who is away with it."""
    joins: tuple[Call, ...] = ()
    """Those who want to take part and are answered when the carrier is back."""
    unsure: bool = False
    """Whether a sum was lost with all who gave to it, perhaps after it had been delivered: then
    parameters that were read before may be older than those between the islands."""


class Gathers(Synchronous):
    """Rounds whose sum is not stepped with here, but carried further."""

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Gather; one that joins, or is back, brings the parameters."""
        assert isinstance(state, Gathering)
        match call.message:
            case Change(errand="meet") if call.worker == state.carrier:
                return _end(state, call)
            case Change(errand="join"):
                return _join(
                    replace(state, present=state.present | {call.worker}), call, call.message
                )
            case Push(version=version) if version != state.version:
                return state, [Answer(call, Parameters(state.version, applied=False))]
            case Push() | Rest():
                return super().on_message(state, call)
            case _:
                return state, [_told(state, call)]

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """Wait for it no longer. If it was away with the sum, another one carries it."""
        assert isinstance(state, Gathering)
        joins = tuple(call for call in state.joins if call.worker != worker)
        left = replace(state, joins=joins)
        if worker == state.carrier:
            # Its call was answered when it was sent.
            left = replace(left, carrier="", waiting=left.waiting.without(worker))
            left = replace(left, present=left.present - {worker})
            return _send(left, []) if left.waiting else _end(replace(left, unsure=True), None)
        return super().on_leave(left, worker)

    def early(self, state: ServerState, call: Call) -> int:
        """The gradients of one round are added up in the order of ranks."""
        late = isinstance(call.message, Push) and call.message.version != state.version
        return 0 if late else super().early(state, call)

    def on_repeat(self, state: ServerState, call: Call) -> Answer:
        """With the errand, if it is on one and has not heard of it."""
        assert isinstance(state, Gathering)
        away = call.worker == state.carrier and isinstance(call.message, Push)
        said = _errand(state, call) if away else _told(state, call)
        return replace(said, parameters=said.parameters and call.room)

    def _close(self, state: Round, actions: list[Action]) -> tuple[Round, list[Action]]:
        assert isinstance(state, Gathering)
        if state.carrier or len(state.waiting) < len(state.present):
            return state, actions
        if state.waiting:
            return _send(state, actions)
        if not state.gone:
            return state, actions
        # Nobody is left to carry it: the samples of those who are lost are given to others.
        after, more = _end(state, None)
        return after, [*actions, *more]


def _join(state: Gathering, call: Call, join: Change) -> tuple[Gathering, list[Action]]:
    """Have one take part, which brings the parameters between the islands if they are others."""
    if state.carrier:
        return replace(state, joins=(*state.joins, call)), []
    if not _is_old(state, join) and (join.version > state.version or state.unsure):
        # The others have gone on without this island: all who gave to it are lost.
        return _end(state, call)
    return state, [_told(state, call)]


def _send(state: Gathering, actions: list[Action]) -> tuple[Gathering, list[Action]]:
    """Send one of those who gave with the sum."""
    call = state.waiting.values()[0]
    away = replace(state, carrier=call.worker)
    return away, [*actions, _errand(away, call)]


def _errand(state: Gathering, call: Call) -> Answer:
    said = Parameters(
        state.version,
        errand="meet",
        samples=state.samples,
        dealt=state.dealt,
        number=state.number,
    )
    return Answer(call, said, parameters=state.samples > 0, gathered=True)


def _end(state: Gathering, call: Call | None) -> tuple[Gathering, list[Action]]:
    """The next sum begins: with the parameters that came with a call, or with those that are here.

    What was gathered has been applied if its carrier is back, and will not be otherwise.
    """
    applied = bool(state.carrier)
    answered = [one for one in state.waiting.values() if one.worker != state.carrier]
    begun: list[Action] = [Drop(0)] if state.samples else []
    now = Gathering(state.terms, state.version, state.present, number=state.number + 1)
    now = replace(now, unsure=call is None and state.unsure)
    if call is not None and isinstance(call.message, Change):
        now = replace(now, version=call.message.version)
        begun += [Add(call, 1.0, pot=1), Move(by=1.0, over=1.0, pots=(1,)), _told(now, call)]
    said = Parameters(now.version, applied=applied)
    told = [Answer(one, said) for one in (*state.gone, *answered)]
    return now, [*begun, *told, *(_told(now, one) for one in state.joins)]


def _told(state: Gathering, call: Call) -> Answer:
    """What one hears who is here; one that has other parameters than these joins again."""
    match call.message:
        case Change(errand="join") as join if join.version > state.version or _is_old(state, join):
            said = Parameters(state.version, errand="join", number=state.number)
            return Answer(call, said)
        case _:
            return Answer(call, Parameters(state.version))


def _is_old(state: Gathering, join: Change) -> bool:
    """Whether one that joins may have read what a lost sum has changed since."""
    return state.unsure and join.number != state.number
