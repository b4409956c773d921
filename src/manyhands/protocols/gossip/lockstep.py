"""What a worker's own server decides in lockstep gossip: who is mixed with whom in a round.

A worker gives its replica to its neighbours before it computes, and hears afterwards what becomes
of it. A neighbour answers when it is in that round itself: then each has the other's replica, and
both mix. One that rests, or has gone on, refuses. So of two workers either both mix with the other
in a round or neither does, and whoever misses somebody keeps that weight for itself: either way the
mean of all is kept.

Nobody waits in a circle. Of those that wait, the one in the earliest round waits for somebody in a
round at least as late, who has answered, or for somebody who is at work and will.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from manyhands.endpoint import Join, Mix, Parameters, Pull, Push, Rest
from manyhands.protocols.actions import Action, Add, Answer, Call, Drop, Move, Shift
from manyhands.protocols.parts.rank_order import pot_of, pots_of, rank_of
from manyhands.protocols.protocol import ServerState

if TYPE_CHECKING:
    from manyhands.protocols.gossip.topologies import Graph


@dataclass(frozen=True)
class Mixing(ServerState):
    """One worker's replica, and what is on its way into it."""

    round: int = -1
    """The worker's last."""
    is_open: bool = False
    """Whether that is still to be mixed."""
    told: frozenset[str] = frozenset()
    """To whom the worker gave its replica in that round, as far as they live."""
    rests: bool = False
    came: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """By round, from whom a replica came that is to be mixed in; `gone-3` if 3 is gone since."""
    asking: dict[int, tuple[Call, ...]] = field(default_factory=dict)
    """By later rounds, those who ask whether this worker will be in it."""
    mix: Call | None = None
    """The worker's own call, to be answered when all is there that is to be mixed in."""
    awaited: frozenset[str] = frozenset()
    """From whom that comes, as far as they live."""
    share: int = 0
    """How much the worker's own replica counts, where a neighbour's counts for one."""
    unheard: frozenset[str] = frozenset()
    """Workers that are gone, and have said nothing since."""
    refused: dict[str, int] = field(default_factory=dict)
    """By sender, the number of its last call that was refused."""


Decision = tuple[Mixing, list[Action]]


def decide(state: Mixing, call: Call, neighbours: Graph) -> Decision:
    """What to do about a call of the worker itself, or of another one."""
    rank, workers = state.terms.number, state.terms.workers
    mine = call.worker == f"worker-{rank}"
    if call.worker in state.unheard:
        # Whoever says something is there.
        state = replace(state, unheard=state.unheard - {call.worker})
    if isinstance(call.message, Pull):
        there = replace(state, rests=False) if mine and state.rests else state
        return there, [Answer(call, Parameters(state.version))]
    if not mine:
        return _offer(state, call) if isinstance(call.message, Push) else (state, [])
    match call.message:
        case Join(round=number, neighbours=told):
            return _join(state, call, number, told)
        case Mix(round=number, neighbours=ranks) if number == state.round and state.is_open:
            weights = 1 + len(neighbours(rank, workers, number))
            return _mix(state, call, ranks, weights)
        case Rest():
            return _rest(state, call)
    return state, []


def _offer(state: Mixing, call: Call) -> Decision:
    """A neighbour gives its replica of a round."""
    assert isinstance(call.message, Push)
    number = call.message.version
    came = {**state.came, number: (*state.came.get(number, ()), call.worker)}
    added = Add(call, 1.0, pot=pot_of(number, state.terms.workers, call.worker))
    if number == state.round and state.is_open and call.worker in state.told:
        taken = replace(state, came=came)
        return _conclude(taken, [added, Answer(call, Parameters(state.version), parameters=False)])
    if number > state.round and not state.rests:
        asking = {**state.asking, number: (*state.asking.get(number, ()), call)}
        return replace(state, came=came, asking=asking), [added]
    return _refuse(state, [call], [])


def _join(state: Mixing, call: Call, number: int, neighbours: tuple[int, ...]) -> Decision:
    """The worker is in a round, and has given its replica to these."""
    told = frozenset(f"worker-{rank}" for rank in neighbours) - state.unheard
    passed = {at: calls for at, calls in state.asking.items() if at < number}
    asking = state.asking.get(number, ())
    now = replace(
        state,
        round=number,
        is_open=True,
        rests=False,
        told=told,
        asking={at: calls for at, calls in state.asking.items() if at > number},
    )
    answers: list[Action] = [
        Answer(one, Parameters(state.version), parameters=False)
        for one in (call, *asking)
        if one is call or one.worker in told
    ]
    late = [one for calls in passed.values() for one in calls]
    strangers = [one for one in asking if one.worker not in told]
    now, actions = _refuse(now, [*late, *strangers], answers)
    return _drop(now, [at for at in state.came if at < number], actions)


def _mix(state: Mixing, call: Call, neighbours: tuple[int, ...], weights: int) -> Decision:
    """The worker wants its replica mixed with these neighbours', of so many weights in all."""
    awaited = frozenset(f"worker-{rank}" for rank in neighbours) & state.told
    came = state.came.get(state.round, ())
    share = max(1, weights - len(came) - len(awaited.difference(came)))
    there = replace(state, mix=call, awaited=awaited, share=share)
    # The step is added after the mixing, perhaps at another call: until then it is kept as a sum.
    return _conclude(there, [Add(call, 1.0)])


def _rest(state: Mixing, call: Call) -> Decision:
    """The worker has nothing to do: no later round will see it until it says so."""
    asking = [one for calls in state.asking.values() for one in calls]
    done = Answer(call, Parameters(state.version), parameters=False)
    now, actions = _refuse(replace(state, rests=True, asking={}), asking, [done])
    return _drop(now, list(state.came), actions)


def leave(state: Mixing, worker: str) -> Decision:
    """A worker is gone. What it gave counts, but does not stand for it when it is back."""
    gone = frozenset((worker,))
    left = replace(
        state,
        came={
            at: tuple(f"gone-{rank_of(worker)}" if one == worker else one for one in who)
            for at, who in state.came.items()
        },
        told=state.told - gone,
        awaited=state.awaited - gone,
        unheard=state.unheard | gone,
        asking={
            at: tuple(call for call in calls if call.worker != worker)
            for at, calls in state.asking.items()
        },
    )
    over = [call for calls in state.asking.values() for call in calls if call.worker == worker]
    return _conclude(*_refuse(left, over, []))


def _refuse(state: Mixing, calls: list[Call], actions: list[Action]) -> Decision:
    """Tell those who ask that the round will be, or was, without this worker."""
    if not calls:
        return state, actions
    refused = {**state.refused, **{call.sender: call.number for call in calls}}
    no = Parameters(state.version, applied=False)
    answers = [Answer(call, no, parameters=False) for call in calls]
    return replace(state, refused=refused), [*actions, *answers]


def _drop(state: Mixing, rounds: list[int], actions: list[Action]) -> Decision:
    """Forget what came for rounds that this worker will not be in."""
    if not rounds:
        return state, actions
    came = {at: who for at, who in state.came.items() if at not in rounds}
    drops = [Drop(pot) for at in rounds for pot in pots_of(at, state.terms.workers, state.came[at])]
    return replace(state, came=came), [*actions, *drops]


def _conclude(state: Mixing, actions: list[Action]) -> Decision:
    """Mix, if all is there."""
    came, terms = state.came.get(state.round, ()), state.terms
    if state.mix is None or not state.awaited <= set(came):
        return state, actions
    mixed = replace(
        state,
        version=state.version + 1,
        is_open=False,
        came={at: who for at, who in state.came.items() if at != state.round},
        mix=None,
    )
    mixing: list[Action] = [Shift(None), Answer(state.mix, Parameters(mixed.version))]
    if came:
        by, pots = len(came) / (state.share + len(came)), pots_of(state.round, terms.workers, came)
        mixing.insert(0, Move(by, over=len(came), pots=pots))
    return mixed, [*actions, *mixing]


def again(state: Mixing, call: Call) -> Answer:
    """The answer to a replica that came before: what was refused stays so."""
    applied = state.refused.get(call.sender) != call.number
    return Answer(call, Parameters(state.version, applied=applied), parameters=False)
