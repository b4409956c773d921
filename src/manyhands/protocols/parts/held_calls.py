"""Calls that a runtime holds until their turn, as `StrategyProtocol.early` defines it."""

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
    """Early calls and their payloads, in the order of their senders' ranks.

    A held call has changed no state: to its sender it is still in flight.
    """

    def __init__(self, protocol: StrategyProtocol) -> None:
        self._protocol = protocol
        self._ranks: list[int] = []
        self._held: dict[int, tuple[Call, T]] = {}

    def hold(self, state: ServerState, call: Call, what: T) -> bool:
        """Hold a call if it is early; return whether it is. A resent call replaces the first."""
        if self._protocol.early(state, call) <= 0:
            return False
        rank = rank_of(call.worker)
        if rank not in self._held:
            heappush(self._ranks, rank)
        self._held[rank] = (call, what)
        return True

    def take(self, state: ServerState) -> T | None:
        """The next call that is no longer early, lowest rank first; None if there is none."""
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
        """Discard the held call of a worker that is lost."""
        self._held.pop(rank_of(worker), None)

    def drain(self) -> Iterator[T]:
        """Remove and return everything that is held."""
        held, self._held, self._ranks = self._held, {}, []
        return (what for _, what in held.values())
