"""What the server of an island decides, in a hierarchy.

An island's server takes rounds with its own workers. When a meeting is due it sends one of them
away with the island's parameters, on an errand to the server between the islands, and holds its
answers to the others until that one is back. Whoever is lost on the way is replaced by another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from manyhands.endpoint import Change, Errand, Parameters, Pull, Push, Rest
from manyhands.protocols.actions import Action, Answer, Call, Shift, Step
from manyhands.protocols.parts.rounds import Round

if TYPE_CHECKING:
    from manyhands.protocols.averaging import Meeting
    from manyhands.protocols.synchronous import Synchronous


@dataclass(frozen=True)
class Island(Round):
    """A server of one island: its round, and how it stands with the other islands."""

    rounds: int = 0
    """Concluded since the start."""
    alone: int = 0
    """Concluded since the last meeting with the other islands."""
    made_of: int = 0
    """Samples of those."""
    givers: frozenset[str] = frozenset()
    """Who gave to them and lives: when none is left, their samples are given to others again."""
    carrier: str = ""
    """The worker that is away on an errand."""
    errand: Errand = ""
    """Which."""
    held: tuple[Call, ...] = ()
    """Calls that are answered when it is back."""
    rests: bool = False
    """Whether nobody is at work here: whoever is again must join the other islands first."""


def on_island(
    inner: Synchronous, outer: Meeting, state: Island, call: Call
) -> tuple[Island, list[Action]]:
    """What an island's server does about a call."""
    match call.message:
        case Change():
            return _back(outer, state, call)
        case Pull():
            there = replace(state, present=state.present | {call.worker}, held=(*state.held, call))
            return _go_on(outer, there, [])
        case _:
            after, actions = inner.on_message(state, call)
            assert isinstance(after, Island)
            return _settle(outer, after, actions, state.gone)


def left_island(
    inner: Synchronous, outer: Meeting, state: Island, worker: str
) -> tuple[Island, list[Action]]:
    """What an island's server does when a worker of its own is gone."""
    gave = (state.waiting[worker],) if worker in state.waiting else ()
    gone = (*state.gone, *gave)
    after, actions = inner.on_leave(state, worker)
    assert isinstance(after, Island)
    without = replace(
        after,
        held=tuple(call for call in after.held if call.worker != worker),
        carrier="" if after.carrier == worker else after.carrier,
        givers=after.givers - {worker},
    )
    if not without.givers and not actions:
        without = replace(without, alone=0, made_of=0, rests=after.rests or not without.present)
    return _settle(outer, without, actions, gone)


def _settle(
    outer: Meeting, state: Island, actions: list[Action], gone: tuple[Call, ...]
) -> tuple[Island, list[Action]]:
    """Count a round that was concluded; hold those who wait for a meeting, and those who rest.

    Who rests is answered after a meeting too: until then what it made is on this island alone.
    """
    answers = [action for action in actions if isinstance(action, Answer)]
    pushes = [one.call.message for one in answers if isinstance(one.call.message, Push)]
    done = [_weigh(state, action, pushes) for action in actions if action not in answers]
    if pushes:
        state = replace(
            state,
            rounds=state.rounds + 1,
            alone=state.alone + 1,
            made_of=state.made_of + sum(push.samples for push in pushes),
            givers=state.givers | {one.call.worker for one in answers if one.call not in gone},
        )
    for one in answers:
        waits = isinstance(one.call.message, Rest) or _is_due(outer, state)
        if waits and one.call not in gone:
            state = replace(state, held=(*state.held, one.call))
        else:
            done.append(one)
    return _go_on(outer, state, done)


def _weigh(state: Island, action: Action, pushes: list[Push]) -> Action:
    """A step on an island counts for the whole global batch, as one on the way to an average.

    The other parts are stepped with on other islands, and then the mean is taken.
    """
    if not isinstance(action, Step):
        return action
    # After a loss a round may have parts of two batches, and one without samples decides nothing.
    total = max(push.total for push in pushes if push.samples)
    return replace(action, weight=state.terms.weigh(total, action.dealt))


def _is_due(outer: Meeting, state: Island) -> bool:
    return state.alone > 0 and state.alone >= outer.interval(state.rounds)


def _go_on(outer: Meeting, state: Island, actions: list[Action]) -> tuple[Island, list[Action]]:
    """Answer those who are held, if nothing stands in the way; else send one of them away."""
    if state.carrier or not state.held:
        return state, actions
    errand: Errand
    if not state.present:
        errand = "" if state.rests else "rest"
    elif _is_due(outer, state):
        errand = "meet"
    else:
        errand = "join" if state.rests else ""
    if not errand:
        ready = tuple(call for call in state.held if _is_ready(state, call))
        told = [_told(call, state) for call in ready]
        held = tuple(call for call in state.held if call not in ready)
        return replace(state, held=held), [*actions, *told]
    goes, *others = state.held
    away = replace(state, carrier=goes.worker, errand=errand, held=tuple(others))
    return away, [*actions, _send(goes, away)]


def _send(call: Call, state: Island) -> Answer:
    samples = 0 if state.errand == "join" else state.made_of
    return Answer(call, Parameters(state.version, errand=state.errand, samples=samples))


def _is_ready(state: Island, call: Call) -> bool:
    """Whether a call can be answered between two meetings: who rests waits for the next one."""
    return not isinstance(call.message, Rest) or not state.alone


def _told(call: Call, state: Island) -> Answer:
    rests = isinstance(call.message, Rest)
    return Answer(call, Parameters(state.version, errand="done"), parameters=not rests)


def _back(outer: Meeting, state: Island, call: Call) -> tuple[Island, list[Action]]:
    """One is back with what the islands came to; the others may go on."""
    assert isinstance(call.message, Change)
    now = replace(
        state,
        version=state.version + 1,
        alone=0,
        made_of=0,
        givers=frozenset(),
        carrier="",
        rests=call.message.errand == "rest",
    )
    return _go_on(outer, now, [Shift(call), _told(call, now)])


def again_on_island(state: Island, call: Call) -> Answer:
    """The answer to a call that was answered before, and whose answer was lost."""
    if call.worker == state.carrier and not isinstance(call.message, Change):
        said = _send(call, state)
    elif isinstance(call.message, Push) and state.alone:
        said = Answer(call, Parameters(state.version))
    else:
        said = _told(call, state)
    return replace(said, parameters=said.parameters and call.room)
