"""The state of every server can be stored and read again, at any moment of a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from manyhands.endpoint import Pull, Push, Rest, Terms
from manyhands.protocols import ALL, Answer, Broadcast, Call
from manyhands.protocols.parts.push import PushGradients
from manyhands.protocols.parts.recovery.encoded_state import plain_state, read_state
from manyhands.protocols.parts.recovery.stored_state import with_all
from manyhands.testing import Law, check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.endpoint import Said
    from manyhands.protocols import Action, ServerState, StrategyProtocol

STORED = [cls for cls in ALL if not cls.peer_servers]


def stored_and_read(state: ServerState) -> ServerState:
    """What a successor reads of a state, in a journal or in a checkpoint."""
    return read_state(json.loads(json.dumps(plain_state(state))), type(state))


class StatesAreStored(Law):
    """Every state that a server is in can be stored, and is equal when it was read."""

    def decided(
        self,
        server: int,  # noqa: ARG002
        before: ServerState,  # noqa: ARG002
        call: Call,  # noqa: ARG002
        payload: object,  # noqa: ARG002
        after: ServerState,
        actions: Sequence[Action],  # noqa: ARG002
    ) -> None:
        """Store the state after a call."""
        assert stored_and_read(after) == after

    def left(
        self,
        server: int,  # noqa: ARG002
        worker: str,  # noqa: ARG002
        before: ServerState,  # noqa: ARG002
        after: ServerState,
        actions: Sequence[Action],  # noqa: ARG002
    ) -> None:
        """Store the state after a loss."""
        assert stored_and_read(after) == after


@pytest.mark.parametrize("cls", STORED, ids=lambda cls: cls.name)
def test_every_state_is_equal_after_it_was_stored(cls: type[StrategyProtocol]) -> None:
    check(Broadcast(codec=None) if cls is Broadcast else cls, 15, laws=[StatesAreStored])


@pytest.mark.parametrize(
    "cls", [cls for cls in STORED if issubclass(cls, PushGradients)], ids=lambda cls: cls.name
)
def test_workers_that_rested_at_a_checkpoint_push_in_the_run_that_continues(
    cls: type[StrategyProtocol],
) -> None:
    protocol, terms = cls(), Terms(global_batch=4, workers=2)
    first = protocol.begin(terms)
    state, count, answered = first, 0, set[tuple[str, int]]()

    def call(worker: str, message: Said) -> None:
        nonlocal state, count
        count += 1
        state, actions = protocol.on_message(state, Call(worker, count, message))
        given = [one.call for one in actions if isinstance(one, Answer)]
        answered.update((one.sender, one.number) for one in given)

    for message in (Pull(), Push(version=0, samples=2)):
        for worker in ("worker-0", "worker-1"):
            call(worker, message)
    for worker in ("worker-0", "worker-1"):
        call(worker, Rest())
    state = with_all(stored_and_read(state), protocol.begin(terms))
    for worker in ("worker-0", "worker-1"):
        call(worker, Pull())
        call(worker, Push(version=state.version, samples=2))
    assert len(answered) == count
