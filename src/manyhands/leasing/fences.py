"""Fences: the incarnations of workers whose calls a server refuses.

A worker that is restarted has the same name and a greater incarnation number. Calls of its
predecessor may still be on their way, and the notice of its loss may arrive late or, after a server
was restarted, a second time. So a fence refuses all incarnations of a worker before a number, and
putting it up twice changes nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable


class Fences:
    """The fences of one server; callers are named by worker and incarnation, as `worker-3.2`."""

    def __init__(self) -> None:
        self._least: dict[str, int] = {}
        """By worker, the least incarnation that is not over."""
        self._heard: dict[str, int] = {}
        """By worker, the greatest incarnation that has called."""

    def restore(self, callers: Iterable[str]) -> None:
        """Continue for a predecessor of this server that had received calls of these callers."""
        for caller in callers:
            worker, incarnation = _split(caller)
            # The journal may name two incarnations of a worker, in any order; the older one must
            # not undo what is known of the newer.
            self._heard[worker] = max(incarnation, self._heard.get(worker, 0))

    def judge(self, caller: str) -> Literal["over", "successor", "known"]:
        """Decide how to treat a call.

        Returns:
            over: refuse it. successor: its predecessor is lost, which this server had not been
            notified of; notify the protocol first. known: execute it.
        """
        worker, incarnation = _split(caller)
        # A worker that has not called yet is known, whatever its incarnation: the protocol holds
        # nothing of an earlier one that it would have to forget.
        before = self._heard.get(worker, incarnation)
        if incarnation < max(self._least.get(worker, 0), before):
            return "over"
        self._heard[worker] = incarnation
        # If the fence came before the successor called, the protocol was notified by it. A second
        # notification would drop what the successor itself has contributed since.
        if before < incarnation and before >= self._least.get(worker, 0):
            # The call proves the loss. The fence, which is repeated until it is confirmed, then
            # finds this number and does not notify the protocol a second time.
            self._least[worker] = incarnation
            return "successor"
        return "known"

    def put(self, worker: str, least: int) -> bool:
        """End incarnations before `least`; return whether to notify the protocol of a loss."""
        if least <= self._least.get(worker, 0):
            return False
        self._least[worker] = least
        # A successor may call before the fence of its predecessor arrives; the fence must not count
        # it as lost (`tests/leasing/test_fences.py`).
        return self._heard.get(worker, 0) < least

    def is_over(self, caller: str) -> bool:
        """Whether a caller's incarnation is over."""
        worker, incarnation = _split(caller)
        return incarnation < self._least.get(worker, 0)


@lru_cache(maxsize=65_536)
def _split(caller: str) -> tuple[str, int]:
    """A worker and its incarnation; without a number it is the first."""
    worker, _, incarnation = caller.partition(".")
    return worker, int(incarnation) if incarnation.isdigit() else 1
