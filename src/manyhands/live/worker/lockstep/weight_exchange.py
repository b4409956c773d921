"""Exchange of the weights of losses among workers that step together.

Whether workers exchange them is agreed in the first step of a group, and depends on no batch later:
a worker whose batch decided for itself would wait for others that do not come.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.parameters.weights.loss_weight import CountedLoss
    from manyhands.parameters.weights.weight_table import WeightTable
    from manyhands.placements.bound import Bound
    from manyhands.sampling.permutation import Share
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


class WeightExchange:
    """Sums the weights of all workers' losses.

    Args:
        bound: this worker's part of the model.
        group: all workers.
        waits: records waiting for other workers.
    """

    def __init__(self, bound: Bound, group: Group, waits: Waits) -> None:
        self._bound = bound
        self._group = group
        self._waits = waits

    def regroup(self, group: Group) -> None:
        """Exchange weights with the workers of another group from now on."""
        self._group = group

    def settle(self, share: Share, counted: CountedLoss) -> None:
        """Make the gradient that of the mean over all weights, if that is not done yet.

        Until here it is the gradient of the sum of all totals, divided by the number of samples.
        Whether workers ask each other never depends on the data of one of them.
        """
        own = counted.take()
        if counted.balanced or not counted.counts or not self._bound.rescales:
            return
        if not self._divides:
            if own is not None:
                self._rescale(share.computed, float(own))
            if counted.looked and not counted.decided and self._group.device.type != "cpu":
                # Reading the weights in every step would synchronise the device.
                counted.decide(counts=counted.needs)
            return
        speaks = self._bound.speaks and share.samples > 0
        weight = 0.0 if not speaks else float(share.samples if own is None else own)
        numbers = [counted.needs, share.samples if speaks else 0, weight]
        sums = torch.tensor(numbers, dtype=torch.float64, device=self._group.device)
        self._sum_weights(sums)
        needs, samples, total = sums.tolist()
        if not counted.decided:
            counted.decide(counts=needs > 0)
        self._rescale(samples, total)

    def _rescale(self, samples: float, weight: float) -> None:
        if samples != weight:
            self._bound.rescale(samples / weight if weight else 0.0)

    @property
    def _divides(self) -> bool:
        """Whether the workers that step together have different samples."""
        group = self._bound.together or self._group
        return group.size > 1 and self._bound.replicas > 1

    @contextlib.contextmanager
    def balancing(self, share: Share, counted: CountedLoss) -> Iterator[None]:
        """Context of a gradient: means are scaled by the weights of all workers."""
        counted.take()
        counted.balanced = False
        if self._bound.rescales:
            counted.alone = not self._divides
            counted.balance = partial(self._balance, share, counted)
        try:
            yield
        finally:
            counted.balance = None

    def _balance(self, share: Share, counted: CountedLoss, table: WeightTable) -> WeightTable:
        """What the losses of all workers that step together count.

        In the first step of a group all workers find out whether any of them needs weights. If none
        does, each step of all the others is without this exchange.
        """
        speaks = self._bound.speaks and share.samples > 0
        own = (table.numbers * speaks).to(self._group.device)
        totals = own.clone()
        self._sum_weights(totals)
        if not counted.decided:
            counted.decide(counts=bool(totals[0] > 0))
        return table.summed(totals, partial(self._all_weights, own))

    def _sum_weights(self, numbers: torch.Tensor) -> None:
        self._waits.begin()
        (self._bound.together or self._group).sum_small(numbers)
        self._waits.end()

    def _all_weights(self, own: torch.Tensor) -> torch.Tensor:
        """The numbers of all workers, a row for each."""
        group = self._bound.together or self._group
        everyone = own.new_empty(group.size, len(own))
        self._waits.begin()
        group.gather(everyone, own)
        self._waits.end()
        return everyone
