"""Calls that a runtime holds back until it is their turn, as `StrategyProtocol.early` says."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Generic, TypeVar

from manyhands.protocols.parts.rank_order import rank_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.protocols.actions import Call
    from manyhands.protocols.protocol import ServerState, StrategyProtocol

T = TypeVar("T")


class HeldCalls(Generic[T]):
    """What came with calls that are early, in the order of the ranks of their senders.

    What is held back has changed nothing: for whoever sent it, it is still on its way.
    """

    def __init__(self, protocol: StrategyProtocol) -> None:
        self._protocol = protocol
        self._ranks: list[int] = []
        self._held: dict[int, tuple[Call, T]] = {}

    def hold(self, state: ServerState, call: Call, what: T) -> bool:
        """Whether a call is early; then it is held. One that is sent again replaces the first."""
        if self._protocol.early(state, call) <= 0:
            return False
        rank = rank_of(call.worker)
        if rank not in self._held:
            heappush(self._ranks, rank)
        self._held[rank] = (call, what)
        return True

    def take(self, state: ServerState) -> T | None:
        """What is no longer early, the lowest rank first; None if all is."""
        while self._ranks:
            rank = self._ranks[0]
            if rank not in self._held:
                heappop(self._ranks)
                continue
            call, what = self._held[rank]
            if self._protocol.early(state, call) > 0:
                return None
            heappop(self._ranks)
            del self._held[rank]
            return what
        return None

    def drop(self, worker: str) -> None:
        """Forget what a worker sent: it is lost."""
        self._held.pop(rank_of(worker), None)

    def drain(self) -> Iterator[T]:
        """All that is held, and is held no longer."""
        held, self._held, self._ranks = self._held, {}, []
        return (what for _, what in held.values())
