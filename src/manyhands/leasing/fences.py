"""Fences: which lives of workers are over, as one server knows it.

A worker that is started again has the same name and a greater life number. What its predecessor
sent may still be on its way, and news of its loss may come late or, after a server was started
again, a second time. So a fence says "all lives of this worker before that number are over", and
raising one twice changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable


class Fences:
    """The fences of one server; a caller is named by worker and life, as in `worker-3.2`."""

    def __init__(self) -> None:
        self._least: dict[str, int] = {}
        """By worker, the least life that is not over."""
        self._heard: dict[str, int] = {}
        """By worker, the greatest life that has called."""

    def restore(self, callers: Iterable[str]) -> None:
        """Continue for a predecessor that had heard these callers."""
        for caller in callers:
            worker, incarnation = _split(caller)
            self._heard[worker] = max(incarnation, self._heard.get(worker, 0))

    def judge(self, caller: str) -> Literal["over", "successor", "known"]:
        """What to do about a call.

        Returns:
            over: refuse it. successor: its predecessor is gone, of which this server was not told
            yet: let the protocol know first. known: carry it out.
        """
        worker, incarnation = _split(caller)
        before = self._heard.get(worker, incarnation)
        if incarnation < max(self._least.get(worker, 0), before):
            return "over"
        self._heard[worker] = incarnation
        if before < incarnation and before >= self._least.get(worker, 0):
            self._least[worker] = incarnation
            return "successor"
        return "known"

    def put(self, worker: str, least: int) -> bool:
        """Lives before `least` are over; whether the protocol is to be told that a worker left."""
        if least <= self._least.get(worker, 0):
            return False
        self._least[worker] = least
        return self._heard.get(worker, 0) < least

    def is_over(self, caller: str) -> bool:
        """Whether a caller's life is over."""
        worker, incarnation = _split(caller)
        return incarnation < self._least.get(worker, 0)


def _split(caller: str) -> tuple[str, int]:
    """A worker and its life; the first one may go without a number."""
    worker, _, incarnation = caller.partition(".")
    return worker, int(incarnation) if incarnation.isdigit() else 1
