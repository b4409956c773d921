"""Recovery of a server: the decisions of its predecessor once more, live and virtual."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from manyhands.protocols.actions import Answer
from manyhands.protocols.execution import carry_out
from manyhands.wire.protocol_messages import Left, Parameters, StoreShard

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from manyhands.parameters import Holder
    from manyhands.protocols.actions import Action, Call
    from manyhands.protocols.compression.shard import CodedShard
    from manyhands.protocols.parts.finite import FiniteCheck
    from manyhands.protocols.parts.recovery.server_journal import ServerJournal
    from manyhands.protocols.protocol import ServerState, StrategyProtocol


def react(
    protocol: StrategyProtocol, state: ServerState, call: Call, *, repeated: bool
) -> tuple[ServerState, list[Action]]:
    """The protocol's decision about a call, or about the loss of a worker.

    Args:
        protocol: the protocol.
        state: its state.
        call: the call; `Left` says that its sender is lost.
        repeated: whether the call was handled before.
    """
    if isinstance(call.message, Left):
        return protocol.on_leave(state, call.worker)
    if isinstance(call.message, StoreShard):
        return state, [Answer(call, Parameters(state.version), parameters=False)]
    if repeated:
        return state, [protocol.on_repeat(state, call)]
    return protocol.on_message(state, call)


def is_journaled(
    before: ServerState, call: Call, after: ServerState, actions: Sequence[Action], *, coded: bool
) -> bool:
    """Whether a decision changes anything that a successor has to know."""
    refused = bool(call.refused)
    return (
        after is not before
        or refused
        or any(
            not isinstance(action, Answer) or action.remember or (coded and action.parameters)
            for action in actions
        )
    )


@dataclass
class Recovered:
    """What a successor knows."""

    state: ServerState
    done: dict[str, int]
    """By caller, the number of its last call."""
    waiting: list[tuple[str, int]]
    """The calls without an answer, by caller and number."""
    replayed: int
    """The calls since the last snapshot."""


def recover(
    journal: ServerJournal,
    protocol: StrategyProtocol,
    first: ServerState,
    holder: Holder,
    coded: CodedShard | None,
    examination: FiniteCheck,
) -> Recovered:
    """Restore a predecessor's snapshot and replay the calls since then.

    Args:
        journal: the journal.
        protocol: the protocol.
        first: the state of a run that begins.
        holder: the shard in its initial state; it gets the predecessor's.
        coded: the codecs of the shard, if there are any.
        examination: examines payloads.
    """
    state, done, waiting = journal.recover(holder, first)
    unanswered = dict.fromkeys(waiting)
    replayed = 0
    for journaled in journal.replay():
        call = journaled.call
        left = isinstance(call.message, Left)
        # A call that was answered again is in the journal too, if its answer changed references or
        # a copy: it must not be applied once more.
        repeated = not left and call.number <= done.get(call.sender, 0)
        payload = journaled.payload if len(journaled.payload) else None
        if coded is not None and not left:
            # In the order of the predecessor: decoding changes references, on which all later
            # payloads depend.
            payload = coded.received(call, payload)
        examine = partial(examination.examine, payload=payload, coded=coded)
        call = examination.again(call) if repeated else examine(call)
        state, actions = react(protocol, state, call, repeated=repeated)
        if left:
            holder.forget_worker(call.worker)
        elif not repeated:
            unanswered[call.sender, call.number] = None
            done[call.sender] = call.number
        for action in actions:
            carry_out(holder, action, payload)
            if isinstance(action, Answer):
                if coded is not None:
                    # Made although it is not sent: the references that a worker has were made with
                    # it.
                    coded.answer(action, answer_source(action, holder))
                # The predecessor may have sent it or not; if not, the worker repeats its call and
                # is answered again.
                unanswered.pop((action.call.sender, action.call.number), None)
        replayed += 1
    return Recovered(state, done, list(unanswered), replayed)


def answer_source(answer: Answer, holder: Holder) -> torch.Tensor | None:
    """The tensor of an answer. A copy that is kept for the sender does not change meanwhile."""
    if answer.remember:
        # The parameters may change before the answer is sent, the copy does not.
        answer = replace(answer, recall=True)
    return answer.payload(holder)
