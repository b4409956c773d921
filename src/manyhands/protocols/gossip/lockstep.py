"""Lockstep gossip: the decisions of a worker's own server on which replicas to average in a round.

A worker sends its replica to its neighbours before it computes, and receives their answers
afterwards. A neighbour accepts when it reaches that round itself: then each has the other's
replica, and both average. A neighbour that rests, or is in a later round, refuses. So of two
workers either both average with the other in a round or neither does, and a worker adds the weight
of a missing neighbour to its own. In both cases the mean of all replicas is preserved, which equal
weights do only if both sides use them (`docs/decisions/0027-neighbours-agree.md`).

There is no deadlock. Of all waiting workers, the one in the earliest round waits for a neighbour
that is in the same or a later round and has answered, or that is still computing and will answer.
A worker that returns changes nothing of that: in its first round it is a worker like any other, and
neighbours that entered that round without knowing of it, or are in a later one, refuse its replica
at once.
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
class GossipState(ServerState):
    """State of a worker's own server: its round, and the replicas received for it."""

    round: int = -1
    """The worker's latest round."""
    is_open: bool = False
    """Whether that round is still to be averaged."""
    given_to: frozenset[str] = frozenset()
    """Live neighbours to which the worker sent its replica in that round."""
    rests: bool = False
    came: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """By round, the senders of received replicas; `gone-3` if worker 3 was lost since."""
    asking: dict[int, tuple[Call, ...]] = field(default_factory=dict)
    """By later round, pushes that wait to know whether this worker will take part in it."""
    mix: Call | None = None
    """The worker's own call, answered when all replicas to average with have arrived."""
    awaited: frozenset[str] = frozenset()
    """The live senders of those replicas."""
    share: int = 0
    """Weight of the worker's own replica; each neighbour's has the weight 1."""
    lost: frozenset[str] = frozenset()
    """Workers that were lost and have not returned."""
    refused: dict[str, int] = field(default_factory=dict)
    """By sender, the number of its last refused call."""


Decision = tuple[GossipState, list[Action]]


def decide(state: GossipState, call: Call, neighbours: Graph) -> Decision:
    """Handle a call of the server's own worker, or of another one."""
    rank, workers = state.terms.number, state.terms.workers
    mine = call.worker == f"worker-{rank}"
    if call.worker in state.lost:
        # A worker that calls is alive.
        state = replace(state, lost=state.lost - {call.worker})
    if isinstance(call.message, Pull):
        there = replace(state, rests=False) if mine and state.rests else state
        return there, [Answer(call, Parameters(state.version))]
    if not mine:
        return _offer(state, call) if isinstance(call.message, Push) else (state, [])
    match call.message:
        case Join(round=number, neighbours=given_to):
            return _join(state, call, number, given_to)
        case Mix(round=number, neighbours=ranks) if number == state.round and state.is_open:
            weights = 1 + len(neighbours(rank, workers, number))
            return _mix(state, call, ranks, weights)
        case Rest():
            return _rest(state, call)
    return state, []


def _offer(state: GossipState, call: Call) -> Decision:
    """Handle the replica that a neighbour sends for a round."""
    assert isinstance(call.message, Push)
    number = call.message.version
    came = {**state.came, number: (*state.came.get(number, ()), call.worker)}
    added = Add(call, 1.0, pot=pot_of(number, state.terms.workers, call.worker))
    if number == state.round and state.is_open and call.worker in state.given_to:
        taken = replace(state, came=came)
        return _conclude(taken, [added, Answer(call, Parameters(state.version), parameters=False)])
    if number > state.round and not state.rests:
        asking = {**state.asking, number: (*state.asking.get(number, ()), call)}
        return replace(state, came=came, asking=asking), [added]
    return _refuse(state, [call], [])


def _join(state: GossipState, call: Call, number: int, neighbours: tuple[int, ...]) -> Decision:
    """Open a round, in which the worker has sent its replica to these neighbours."""
    # The server may know of a loss that the worker did not know of when it sent its replica: one
    # that is lost is not waited for.
    given_to = frozenset(f"worker-{rank}" for rank in neighbours) - state.lost
    passed = {at: calls for at, calls in state.asking.items() if at < number}
    asking = state.asking.get(number, ())
    now = replace(
        state,
        round=number,
        is_open=True,
        rests=False,
        given_to=given_to,
        asking={at: calls for at, calls in state.asking.items() if at > number},
    )
    answers: list[Action] = [
        Answer(one, Parameters(state.version), parameters=False)
        for one in (call, *asking)
        if one is call or one.worker in given_to
    ]
    late = [one for calls in passed.values() for one in calls]
    strangers = [one for one in asking if one.worker not in given_to]
    now, actions = _refuse(now, [*late, *strangers], answers)
    return _drop(now, [at for at in state.came if at < number], actions)


def _mix(state: GossipState, call: Call, neighbours: tuple[int, ...], weights: int) -> Decision:
    """Average the worker's replica with those of `neighbours`; all weights sum to `weights`."""
    awaited = frozenset(f"worker-{rank}" for rank in neighbours) & state.given_to
    came = state.came.get(state.round, ())
    share = max(1, weights - len(came) - len(awaited.difference(came)))
    there = replace(state, mix=call, awaited=awaited, share=share)
    # The step is added after averaging, maybe at a later call: until then it is kept as a sum.
    return _conclude(there, [Add(call, 1.0)])


def _rest(state: GossipState, call: Call) -> Decision:
    """The worker has no samples: it takes part in no round until it joins one again."""
    asking = [one for calls in state.asking.values() for one in calls]
    done = Answer(call, Parameters(state.version), parameters=False)
    now, actions = _refuse(replace(state, rests=True, asking={}), asking, [done])
    return _drop(now, list(state.came), actions)


def leave(state: GossipState, worker: str) -> Decision:
    """Handle a lost worker. Its replica still counts, but not for its next incarnation."""
    gone = frozenset((worker,))
    left = replace(
        state,
        came={
            at: tuple(f"gone-{rank_of(worker)}" if one == worker else one for one in who)
            for at, who in state.came.items()
        },
        given_to=state.given_to - gone,
        awaited=state.awaited - gone,
        lost=state.lost | gone,
        asking={
            at: tuple(call for call in calls if call.worker != worker)
            for at, calls in state.asking.items()
        },
    )
    # They are answered, so that the runtime does not keep them open; the answer goes to no process.
    over = [call for calls in state.asking.values() for call in calls if call.worker == worker]
    return _conclude(*_refuse(left, over, []))


def _refuse(state: GossipState, calls: list[Call], actions: list[Action]) -> Decision:
    """Answer calls with a refusal: this worker takes no part in their round."""
    if not calls:
        return state, actions
    refused = {**state.refused, **{call.sender: call.number for call in calls}}
    no = Parameters(state.version, applied=False)
    answers = [Answer(call, no, parameters=False) for call in calls]
    return replace(state, refused=refused), [*actions, *answers]


def _drop(state: GossipState, rounds: list[int], actions: list[Action]) -> Decision:
    """Discard the replicas received for rounds in which this worker takes no part."""
    if not rounds:
        return state, actions
    came = {at: who for at, who in state.came.items() if at not in rounds}
    drops = [Drop(pot) for at in rounds for pot in pots_of(at, state.terms.workers, state.came[at])]
    return replace(state, came=came), [*actions, *drops]


def _conclude(state: GossipState, actions: list[Action]) -> Decision:
    """Average, if all awaited replicas have arrived."""
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
        # Before the step, which would otherwise be averaged with the replicas of the neighbours,
        # and lose a part.
        mixing.insert(0, Move(by, over=len(came), pots=pots))
    return mixed, [*actions, *mixing]


def repeat(state: GossipState, call: Call) -> Answer:
    """The answer to a replica that was received before: a refusal stands."""
    applied = state.refused.get(call.sender) != call.number
    return Answer(call, Parameters(state.version, applied=applied), parameters=False)
