"""Rounds of several steps: where they end, for strategies that synchronise every H steps.

A round ends after H global batches, and at the end of an epoch. It does not depend on evaluations
or checkpoints: one that is due within a round follows at its end.
"""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.sampling.batches import BatchSizes, deal, steps_before


@dataclass(frozen=True)
class RoundLength:
    """Global batches in a round.

    >>> [RoundLength(8, warmup=2).after(step) for step in (1, 2, 3)]
    [1, 1, 8]
    """

    every: int
    """H: global batches in a round."""
    warmup: int = 0
    """The first global batches of the run, each of which is a round."""

    @property
    def numbers(self) -> tuple[int, int]:
        """Both, as `RuntimeNeeds.rounds` has them."""
        return self.every, self.warmup

    def after(self, step: int) -> int:
        """The length of a round that may end with this global batch of the run, from 1 on."""
        return 1 if step <= self.warmup else self.every


class RoundEnds:
    """The ends of all rounds of a run, in samples of the run.

    >>> ends = RoundEnds(10, 2, RoundLength(3))
    >>> [ends.at_or_after(samples) for samples in (0, 1, 6, 7, 10, 11)]
    [0, 6, 6, 10, 10, 16]

    Args:
        samples: samples of the data.
        sizes: the global batch.
        length: global batches in a round.
        since: samples and global batches of the run that are over, if it is continued.
    """

    def __init__(
        self,
        samples: int,
        sizes: int | BatchSizes,
        length: RoundLength,
        since: tuple[int, int] = (0, 0),
    ) -> None:
        self._samples, self._sizes, self._length = samples, BatchSizes.of(sizes), length
        self._since = since

    def at_or_after(self, dealt: int) -> int:
        """The end of the first round that ends at or after so many samples.

        Rounds begin anew with each epoch, so that only one epoch is looked at: what is due may be
        due in a billion samples.
        """
        over, _ = self._since
        start = max(dealt // self._samples * self._samples, over)
        if dealt <= start:
            return start if dealt > over else over
        step = self._steps_before(start)
        if len(self._sizes.changes) == 1 and step >= self._length.warmup:
            samples = self._length.every * self._sizes.at(0)
            return min(start - (start - dealt) // samples * samples, self.epoch_after(dealt))
        alone = 0
        for batch in deal(self._samples, self._sizes, None, dealt=start):
            step, alone, end = step + 1, alone + 1, batch.dealt + batch.total
            if alone >= self._length.after(step) or batch.ends_epoch:
                alone = 0
                if end >= dealt:
                    return end
        raise AssertionError("the batches of a run without a limit have no end")

    def _steps_before(self, dealt: int) -> int:
        """Global batches of the run before so many samples; at least the warm-up, if it is over."""
        over, steps = self._since
        if dealt == over or steps >= self._length.warmup:
            return steps
        return (
            steps
            + steps_before(self._samples, self._sizes, dealt)
            - steps_before(self._samples, self._sizes, over)
        )

    def epoch_after(self, dealt: int) -> int:
        """The end of the epoch of a global batch that begins after so many samples."""
        return (dealt // self._samples + 1) * self._samples
