# ruff: noqa: ARG002, D102 - `Law` has all events, and documents them
"""Calls are decided once, in order, and answered at most once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from manyhands.endpoint import Parameters
from manyhands.protocols import USES_PAYLOAD, Answer
from manyhands.testing.laws.law import BrokenLawError, Law

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from manyhands.endpoint import Custom
    from manyhands.protocols import Action, Call, ServerState
    from manyhands.testing.cases.case import Case


class CallsOnce(Law):
    """Each call is decided once, in order, and answered at most once; calls of lost workers never.

    The payload of a call is used at most once, and an answer that is repeated says the same of it.
    A call that changes nothing is not in a server's journal: if the server crashes before its
    answer has arrived, it is decided again.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._numbers: Counter[tuple[int, str]] = Counter()
        self._unknown: dict[tuple[int, str], int] = {}
        """By server that has crashed and caller, the last call that is not in the journal."""
        self._fenced: set[str] = set()
        self._answered: dict[tuple[int, str, int], bool] = {}
        self._used: set[tuple[int, str, int]] = set()

    def fenced(self, sender: str) -> None:
        self._fenced.add(sender)

    def began_anew(self, server: int, x: NDArray[np.float64]) -> None:
        self._numbers = Counter({k: n for k, n in self._numbers.items() if k[0] != server})
        self._answered = {k: said for k, said in self._answered.items() if k[0] != server}
        self._used = {key for key in self._used if key[0] != server}

    def restored(self, server: int, heard: dict[str, int]) -> None:
        for key, last in self._numbers.items():
            known = heard.get(key[1], 0)
            if key[0] == server and known < last:
                self._unknown[key] = max(last, self._unknown.get(key, 0))
                self._numbers[key] = known

    def decided(
        self,
        server: int,
        before: ServerState,
        call: Call,
        payload: NDArray[np.float64] | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        if call.sender in self._fenced:
            raise BrokenLawError(f"{call} is decided although its sender was declared lost")
        unknown = self._unknown.pop((server, call.sender), 0)
        if self._numbers[server, call.sender] < call.number <= unknown + 1:
            self._numbers[server, call.sender] = call.number - 1
            self._answered.pop((server, call.sender, call.number), None)
        self._numbers[server, call.sender] += 1
        expected = self._numbers[server, call.sender]
        if call.number != expected:
            raise BrokenLawError(f"{call} is decided where number {expected} is next")
        self._check(server, before, after, actions)

    def left(
        self,
        server: int,
        worker: str,
        before: ServerState,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        self._check(server, before, after, actions)

    def _check(
        self, server: int, before: ServerState, after: ServerState, actions: Sequence[Action]
    ) -> None:
        if after.version < before.version:
            raise BrokenLawError(
                f"server-{server} goes back from version {before.version} to {after.version}"
            )
        for action in actions:
            if not isinstance(action, (*USES_PAYLOAD, Answer)) or action.call is None:
                continue
            call = action.call
            key = (server, call.sender, call.number)
            if call.number > self._numbers[server, call.sender]:
                raise BrokenLawError(f"{call} is named in an action and was never received")
            if isinstance(action, Answer):
                if key in self._answered:
                    raise BrokenLawError(f"{call} is answered twice")
                self._answered[key] = _applied(action.message)
            else:
                if key in self._used:
                    raise BrokenLawError(f"the payload of {call} is used twice")
                self._used.add(key)

    def replied(
        self,
        server: int,
        call: tuple[str, int],
        message: Parameters | Custom,
        payload: NDArray[np.float64] | None,
    ) -> None:
        applied = self._answered.get((server, *call))
        if applied is None:
            raise BrokenLawError(f"a reply to {call} is sent, and no decision answers it")
        if applied != _applied(message):
            raise BrokenLawError(
                f"a reply to {call} says applied={not applied}, and its answer said {applied}"
            )


def _applied(message: Parameters | Custom) -> bool:
    return not isinstance(message, Parameters) or message.applied
