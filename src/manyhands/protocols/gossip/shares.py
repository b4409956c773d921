"""Shares of push-sum: what a worker's own server gives away of its (x, w), and to whom."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from manyhands.endpoint import Arrived, Parameters, Pull
from manyhands.protocols.actions import Action, Answer, Call, Forget, Scale, Shift
from manyhands.protocols.protocol import ServerState

LEAST = 1 / 64
"""The least mass that a worker keeps. It does not send if it would keep less. At equal speeds one
transfer in a hundred is skipped; without a limit, a worker that sends faster than it receives would
halve its mass until 1 / w overflows."""


@dataclass(frozen=True)
class PushSumState(ServerState):
    """State of a worker's own server, which holds x: the mass w of x."""

    mass: float = 1.0
    given: dict[str, float] = field(default_factory=dict)
    """By worker that returns and has not confirmed it yet, the mass that was given to it."""


Decision = tuple[PushSumState, list[Action]]


def split(state: PushSumState, call: Call, read: int, share: float) -> Decision:
    """Add the worker's step to x, and split off a share of (x, w), unless it is too little."""
    if share * state.mass < LEAST:
        share = 0.0
    given = share * state.mass
    now = replace(state, version=state.version + 1, mass=state.mass - given)
    # Both halves are equal, so the same bytes serve as both.
    half: list[Action] = [Scale(1 - share)] if share else []
    said = Answer(call, Parameters(now.version, mass=given), parameters=bool(share))
    return now, [Shift(call, state.version - read), *half, said]


def give(state: PushSumState, call: Call) -> Decision:
    """Give a share of (x, w) to a worker that returns, once; it confirms that it has arrived."""
    match call.message:
        case Pull(share=share) if share * state.mass >= LEAST:
            mass, version = share * state.mass, state.version + 1
            # By incarnation: an answer that was lost is sent again as it was, and the mass leaves
            # this worker once.
            given = {**state.given, call.sender: mass}
            now = replace(state, version=version, mass=state.mass - mass, given=given)
            # The copy that is kept for the sender is what remains here: both halves are equal.
            half = Answer(call, Parameters(version, mass=mass), remember=True)
            return now, [Scale(1 - share), half]
        case Pull():
            nothing = Parameters(state.version, mass=0.0)
            return state, [Answer(call, nothing, parameters=False)]
        case Arrived():
            kept = {sender: mass for sender, mass in state.given.items() if sender != call.sender}
            done = Answer(call, Parameters(state.version), parameters=False)
            return replace(state, given=kept), [Forget(call.sender), done]
    return state, []


def give_again(state: PushSumState, call: Call) -> Answer:
    """The answer to a worker that returns, and was answered before: the same share."""
    mass = state.given.get(call.sender, 0.0)
    said = Parameters(state.version, mass=mass)
    return Answer(call, said, parameters=bool(mass), recall=True)


def forget(state: PushSumState, worker: str) -> PushSumState:
    """What was given to a lost worker is lost with it."""
    given = state.given
    kept = {sender: mass for sender, mass in given.items() if sender.partition(".")[0] != worker}
    return replace(state, given=kept)
