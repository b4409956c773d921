"""The state of every server can be stored and read again, at any moment of a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from manyhands.protocols import ALL, Broadcast
from manyhands.protocols.parts.recovery.encoded_state import plain_state, read_state
from manyhands.testing import Law, check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.protocols import Action, Call, ServerState, StrategyProtocol

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
