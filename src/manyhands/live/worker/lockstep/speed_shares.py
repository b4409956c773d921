"""Shares of the global batch by measured speeds, of workers that step in a process group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from manyhands.sampling.division import by_weight
from manyhands.sampling.speed_shares import EVERY, better_shares

if TYPE_CHECKING:
    from manyhands.trace import Recorder
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


class SpeedShares:
    """What part of each global batch a worker has.

    Each worker measures how long it computes. Every few steps all of them exchange the samples and
    seconds since the last time, and compute the same new shares: in proportion to samples per
    second, so that all need equally long. The shares of a step are fixed before its batch is
    loaded. Gradients are weighted by samples, so shares change no result but for rounding.

    Args:
        rank: this worker's rank.
        workers: number of workers.
        first: the first step, with equal shares.
        ahead: batches that are loaded ahead.
    """

    def __init__(self, rank: int, workers: int, first: int, ahead: int) -> None:
        self._rank = rank
        self._workers = workers
        self._first = first
        self._ahead = ahead
        self._table: list[tuple[int, tuple[float, ...]]] = [(first, (1 / workers,) * workers)]
        """From which step on the shares are these."""
        self._measured = [0.0, 0.0]
        """Samples, and seconds of computing, since the last exchange."""

    def part(self, step: int, total: int) -> slice:
        """This worker's part of the global batch of a step."""
        counts = by_weight(total, self._shares(step))
        start = sum(counts[: self._rank])
        return slice(start, start + counts[self._rank])

    def _shares(self, step: int) -> tuple[float, ...]:
        return next(shares for first, shares in reversed(self._table) if first <= step)

    def note(self, samples: int, seconds: float) -> None:
        """Note how long a step was computed."""
        self._measured[0] += samples
        self._measured[1] += seconds

    def balance(self, step: int, group: Group, waits: Waits, recorder: Recorder) -> None:
        """Before a step: exchange speeds if it is time, and decide on later shares."""
        if step <= self._first or (step - self._first) % EVERY:
            return
        own = torch.tensor(self._measured, dtype=torch.float64, device=group.device)
        self._measured = [0.0, 0.0]
        everyone = own.new_empty(group.size, 2)
        waits.begin()
        group.gather(everyone, own)
        waits.end()
        later = step + self._ahead + 1
        now = self._shares(later)
        shares = better_shares(now, everyone.tolist())
        if shares == now:
            return
        self._table = [*self._table[-2:], (later, shares)]
        if self._rank == 0:
            text = ", ".join(f"{share:.4f}" for share in shares)
            recorder.event("shares", {"step": str(later), "shares": text})
