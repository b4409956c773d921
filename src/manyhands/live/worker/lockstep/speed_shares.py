"""Shares of the global batch by the speed of workers, measured while they train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from manyhands.sampling.division import by_weight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.trace import Recorder
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits

EVERY: Final = 5
"""Steps between two exchanges of measured speeds."""
_WORTH: Final = 0.03
"""The least part of a step's computing time that other shares must save."""


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


def better_shares(now: tuple[float, ...], measured: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Shares in proportion to measured speeds, if they save enough time; otherwise those of now.

    Args:
        now: the shares of workers, with a sum of 1.
        measured: samples and seconds of each.

    >>> better_shares((0.5, 0.5), [(30, 3.0), (30, 1.0)])
    (0.25, 0.75)
    >>> better_shares((0.5, 0.5), [(30, 1.01), (30, 1.0)])
    (0.5, 0.5)
    """
    if any(samples <= 0 or seconds <= 0 for samples, seconds in measured):
        return now
    rates = [samples / seconds for samples, seconds in measured]
    slowest = max(share / rate for share, rate in zip(now, rates, strict=True))
    if slowest * sum(rates) < 1 / (1 - _WORTH):
        return now
    return tuple(rate / sum(rates) for rate in rates)
