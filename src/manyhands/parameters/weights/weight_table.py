"""What a worker's loss is a mean over, in numbers that are summed over all workers.

A loss may have several means. The sum over workers must add up what belongs together, also where a
batch decides which means a worker computes: each number stands in the place of its mean, with the
number of the line of the script that computes it, so that different means in the same place are
noticed by all workers alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from manyhands.parameters.weights.counted_means import CountedMean

SAID: Final = 0
"""The site of a weight that the objective says."""
MOST: Final = 16
"""Means with a weight of their own; further ones are weighed by samples."""
_COLUMNS: Final = 4
"""What it counts, whether there is one, its site, and the square of its site."""
_HEAD: Final = 2


@dataclass(eq=False)
class WeightTable:
    """The samples of a batch, and what each of its means counts.

    Args:
        numbers: whether a weight is needed, the samples, and a row for each mean.
        sites: the sites of the means.
    """

    numbers: torch.Tensor
    sites: list[int]

    @classmethod
    def of(cls, samples: int, device: torch.device) -> WeightTable:
        """A table without means."""
        numbers = torch.zeros(_HEAD + MOST * _COLUMNS, dtype=torch.float64, device=device)
        numbers[1] = samples
        return cls(numbers, [])

    @property
    def rows(self) -> torch.Tensor:
        """A row for each mean."""
        return self.numbers[_HEAD:].view(MOST, _COLUMNS)

    def needs(self, weight: bool) -> None:
        """Note whether the batch has a mean whose weight is not its samples."""
        self.numbers[0] = weight

    def put(self, site: int, counted: torch.Tensor | float) -> None:
        """Add a mean."""
        row = self.rows[len(self.sites)]
        row[0] = counted.detach() if isinstance(counted, torch.Tensor) else counted
        row[1], row[2], row[3] = 1, site, site * site
        self.sites.append(site)

    def take(self, means: Sequence[CountedMean]) -> list[CountedMean]:
        """Add means, as far as there is room; return those that were added."""
        for mean in means[:MOST]:
            self.put(mean.site, mean.counted)
        return list(means[:MOST])

    def summed(self, totals: torch.Tensor, gather: Callable[[], torch.Tensor]) -> WeightTable:
        """The table of all workers.

        Args:
            totals: the sum of all workers' `numbers`.
            gather: called if they computed different means in the same place; returns the
                `numbers` of all workers. All workers call it, or none.
        """
        found = WeightTable(totals, self.sites)
        _, there, sites, squares = found.rows.unbind(1)
        # The variance of the sites is 0 if all of them are equal.
        same = squares * there == sites * sites
        if totals.device.type != "cpu":
            # Reading it would synchronise the device; a step that is not finite is refused.
            found.rows[:, 0] = torch.where(same, found.rows[:, 0], torch.nan)
        elif not same.all():
            by_site: dict[tuple[int, int], float] = {}
            for numbers in gather():
                of_one: dict[int, int] = {}
                for counted, exists, site, _ in WeightTable(numbers, []).rows.tolist():
                    if exists:
                        nth = of_one[int(site)] = of_one.get(int(site), 0) + 1
                        key = (int(site), nth)
                        by_site[key] = by_site.get(key, 0.0) + counted
            of_one = {}
            for at, site in enumerate(self.sites):
                nth = of_one[site] = of_one.get(site, 0) + 1
                found.rows[at, 0] = by_site.get((site, nth), 0.0)
        return found

    def factor(self, at: int, totals: WeightTable) -> torch.Tensor:
        """By how much the weight of a mean differs from that of this worker's samples."""
        own, everyone = self.rows[at, 0], totals.rows[at, 0]
        share = own / torch.where(everyone > 0, everyone, 1)
        return share * totals.numbers[1] / self.numbers[1].clamp(min=1)
