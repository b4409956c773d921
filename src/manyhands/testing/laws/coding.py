# ruff: noqa: ARG002, D102 - `Law` has all events, and documents them
"""Codecs lose nothing: what a server decodes is what was pushed, but for the residual."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

import numpy as np

from manyhands.endpoint import Push
from manyhands.testing.laws.law import BrokenLawError, Law, near

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from manyhands.protocols import Action, Call, ServerState
    from manyhands.testing.cases.case import Case
    from manyhands.testing.laws.law import Life


class NothingLost(Law):
    """What servers decode plus all residuals equals what was pushed.

    For every push, decoded + residual after = pushed + residual before; so it holds for the sums
    over all pushes of a worker. Where states are sent as differences, the server's copy of a state
    equals the worker's. A worker decodes from an answer the vector that the server keeps for it.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._owed: defaultdict[tuple[str, int], deque[NDArray[np.float64] | None]] = defaultdict(
            deque
        )
        self._fenced: set[str] = set()

    def fenced(self, sender: str) -> None:
        self._fenced.add(sender)

    def encoded(
        self, life: Life, server: int, owed: NDArray[np.float64] | None, *, empty: bool
    ) -> None:
        if not empty:
            self._owed[life.sender, server].append(owed)

    def lost_server(self, life: Life, server: int) -> None:
        self._owed.pop((life.sender, server), None)

    def began_anew(self, server: int, x: NDArray[np.float64]) -> None:
        for sender, there in list(self._owed):
            if there == server:
                del self._owed[sender, there]

    def decided(
        self,
        server: int,
        before: ServerState,
        call: Call,
        payload: NDArray[np.float64] | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        waiting = self._owed[call.sender, server]
        if not isinstance(call.message, Push) or payload is None or not waiting:
            return
        owed = waiting.popleft()
        if owed is not None and not near(payload, owed):
            raise BrokenLawError(
                f"server-{server} decoded {payload} from call {call.number} of {call.sender}, and "
                f"what was pushed less the change of the residual is {owed}"
            )

    def decoded(
        self, life: Life, server: int, kept: NDArray[np.float64], known: NDArray[np.float64] | None
    ) -> None:
        # A server keeps nothing for a lost worker, whose last answer may be on its way.
        if known is None and life.sender in self._fenced:
            return
        if known is None or not np.array_equal(kept, known):
            raise BrokenLawError(
                f"{life.sender} has decoded {kept} from server-{server}, which keeps {known} for it"
            )
