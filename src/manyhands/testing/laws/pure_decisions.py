# ruff: noqa: ARG002, D102 - `Law` has all events, and documents them
"""Decisions can be replayed: a server that was killed continues from its journal.

A live server writes the calls that it received to a journal, and at times its state. Its successor
reads the last state and decides on the calls since then once more. That gives the same parameters
only if a decision depends on nothing but the state and the call, and if a state that was written
down and read is equal to what it was.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

from manyhands.protocols.parts.recovery.encoded_state import plain_state, read_state
from manyhands.testing.laws.law import BrokenLawError, Law

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from manyhands.protocols import Action, Call, ServerState
    from manyhands.testing.cases.case import Case
    from manyhands.virtual import World


class PureDecisions(Law):
    """The same state and the same call give the same decision, and a state can be written down."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._kinds: dict[int, type[ServerState]] = {}
        """By server, the type of its first state, as which a journal reads later ones."""

    def decided(
        self,
        server: int,
        before: ServerState,
        call: Call,
        payload: NDArray[np.float64] | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        self._kinds.setdefault(server, type(before))
        again = self.case.protocol.on_message(before, call)
        self._compare(server, call, (after, [*actions]), again)

    def left(
        self,
        server: int,
        worker: str,
        before: ServerState,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        self._kinds.setdefault(server, type(before))
        again = self.case.protocol.on_leave(before, worker)
        self._compare(server, f"the loss of {worker}", (after, [*actions]), again)

    def _compare(
        self,
        server: int,
        about: object,
        once: tuple[ServerState, list[Action]],
        again: tuple[ServerState, list[Action]],
    ) -> None:
        if once[1] != [*again[1]]:
            raise BrokenLawError(
                f"server-{server} decides on {about}: {once[1]}; in the same state a second time: "
                f"{again[1]}"
            )
        if once[0] != again[0]:
            raise BrokenLawError(
                f"server-{server} decides on {about}, and its state is {once[0]}; after the same "
                f"decision a second time it is {again[0]}"
            )

    def ended(self, world: World) -> None:
        if self.case.protocol.peer_servers:
            return  # such a server ends with its worker, and has no journal
        for number, server in enumerate(world._servers.values()):
            state = server.state
            try:
                stored = json.dumps(plain_state(state))
                read = read_state(json.loads(stored), self._kinds.get(number, type(state)))
            except (TypeError, msgspec.ValidationError) as error:
                raise BrokenLawError(
                    f"the state of {server.name} cannot be written to its journal and read: {error}"
                ) from error
            if read != state:
                raise BrokenLawError(
                    f"the state of {server.name} is {state}, and {read} after it was written to "
                    "its journal and read"
                )
