"""Decisions of an island's server that forwards parameters.

An island's server runs synchronous rounds with its own workers. When an outer synchronisation is
due, it sends one of them, the carrier, on an errand: to take the island's parameters to the outer
server and to return the result. Until then it holds its answers to the other workers. If the
carrier is lost, another worker takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from manyhands.endpoint import Change, Errand, Parameters, Pull, Push, Rest
from manyhands.protocols.actions import Action, Answer, Call, Shift, Step
from manyhands.protocols.parts.rounds import Round

if TYPE_CHECKING:
    from manyhands.protocols.averaging import LocalSteps
    from manyhands.protocols.synchronous import Synchronous


@dataclass(frozen=True)
class Island(Round):
    """State of an island's server: its round, and its progress since the last outer one."""

    rounds: int = 0
    """Rounds since the start."""
    alone: int = 0
    """Rounds since the last outer synchronisation."""
    made_of: int = 0
    """Samples of those rounds."""
    givers: frozenset[str] = frozenset()
    """Live workers that contributed to them; if all are lost, their samples are leased again."""
    carrier: str = ""
    """The worker that is on an errand."""
    errand: Errand = ""
    """Its errand."""
    held: tuple[Call, ...] = ()
    """Calls that are answered when the carrier returns."""
    rests: bool = False
    """Whether no worker of the island computes; the next one has to join the outer rounds first."""


def on_island(
    inner: Synchronous, outer: LocalSteps, state: Island, call: Call
) -> tuple[Island, list[Action]]:
    """Handle a call on an island's server."""
    match call.message:
        case Change():
            return _back(outer, state, call)
        case Pull():
            there = replace(
                state,
                present=state.present | {call.worker},
                paused=state.paused - {call.worker},
                held=(*state.held, call),
            )
            return _go_on(outer, there, [])
        case _:
            if isinstance(call.message, Push) and state.paused:
                # Who waits for the answer to its rest cannot come back: samples of a lost worker
                # have been leased to this one meanwhile.
                resting = {one.worker for one in state.held if isinstance(one.message, Rest)}
                state = replace(state, paused=state.paused - resting)
            after, actions = inner.on_message(state, call)
            assert isinstance(after, Island)
            return _settle(outer, after, actions, state.gone)


def left_island(
    inner: Synchronous, outer: LocalSteps, state: Island, worker: str
) -> tuple[Island, list[Action]]:
    """Handle the loss of a worker on its island's server."""
    # Before `on_leave`, which may conclude the round and forget who contributed to it.
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
        # All who contributed are lost and their samples are leased again: taken to the outer
        # server, these rounds would count twice.
        without = replace(without, alone=0, made_of=0, rests=after.rests or not without.present)
    return _settle(outer, without, actions, gone)


def _settle(
    outer: LocalSteps, state: Island, actions: list[Action], gone: tuple[Call, ...]
) -> tuple[Island, list[Action]]:
    """Count a concluded round; hold answers if an outer synchronisation is due.

    A resting worker is also answered after it: until then its updates are on this island only.
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
    """Give an island's step the weight of the whole global batch, as in parameter averaging.

    Other islands step with the other parts of the batch, and the results are averaged.
    """
    if not isinstance(action, Step):
        return action
    # After a loss a round may have parts of two batches; a part without samples is ignored.
    total = max(push.total for push in pushes if push.samples)
    return replace(action, weight=state.terms.weigh(total, action.dealt))


def _is_due(outer: LocalSteps, state: Island) -> bool:
    return state.alone > 0 and state.alone >= outer.interval(state.rounds)


def _go_on(outer: LocalSteps, state: Island, actions: list[Action]) -> tuple[Island, list[Action]]:
    """Answer the held calls if no errand is due; otherwise send one of the workers on it."""
    # One errand at a time: two carriers would bring back two changes for one outer round.
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
        answers = [_answer_now(call, state) for call in ready]
        held = tuple(call for call in state.held if call not in ready)
        return replace(state, held=held), [*actions, *answers]
    goes, *others = state.held
    away = replace(state, carrier=goes.worker, errand=errand, held=tuple(others))
    return away, [*actions, _send(goes, away)]


def _send(call: Call, state: Island) -> Answer:
    if state.errand == "join":
        return Answer(call, Parameters(state.version, errand="join"))
    # Rounds without samples count: other islands had some in the same ones, and wait for this one.
    rounds = state.alone if state.errand == "rest" else 0
    said = Parameters(state.version, errand=state.errand, samples=state.made_of, number=rounds)
    return Answer(call, said)


def _is_ready(state: Island, call: Call) -> bool:
    """Whether a call can be answered now: a resting worker waits for the next outer round."""
    return not isinstance(call.message, Rest) or not state.alone


def _answer_now(call: Call, state: Island) -> Answer:
    rests = isinstance(call.message, Rest)
    return Answer(call, Parameters(state.version, errand="done"), parameters=not rests)


def _back(outer: LocalSteps, state: Island, call: Call) -> tuple[Island, list[Action]]:
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
    return _go_on(outer, now, [Shift(call), _answer_now(call, now)])


def repeat_on_island(state: Island, call: Call) -> Answer:
    """The answer to a call whose first answer was lost."""
    if call.worker == state.carrier and not isinstance(call.message, Change):
        said = _send(call, state)
    elif isinstance(call.message, Push) and state.alone:
        said = Answer(call, Parameters(state.version))
    else:
        said = _answer_now(call, state)
    return replace(said, parameters=said.parameters and call.room)
