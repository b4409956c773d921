"""What codecs with error feedback have not sent, kept while a group changes.

A step that was interrupted is repeated with the residuals of before: a part of the present ones has
been sent in vain. If another worker has completed the step, everything of this one has arrived, and
the present residuals are those after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from manyhands.placements.bound import Bound


@dataclass(frozen=True)
class FormerResiduals:
    """The residuals of a worker when its group ended."""

    now: Mapping[str, torch.Tensor]
    before: Mapping[str, torch.Tensor] | None
    """Those before the step that was interrupted; None if none was."""
    workers: int
    """Members of the group."""

    def carry(self, bound: Bound, *, repeats: bool) -> None:
        """Have a replica in another group send them; `repeats` is whether the step is repeated."""
        chosen = self.before if self.before is not None and repeats else self.now
        if chosen:
            bound.carry_over(chosen, self.workers)


class KeptResiduals:
    """The residuals of a worker before its present step.

    Args:
        bound: the worker's replica.
    """

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._kept: dict[str, torch.Tensor] = {}
        self._steps = False

    def begin(self, *, steps: bool) -> None:
        """Note that an operation begins; copy the residuals if it is a step."""
        self._steps = steps
        present = self._bound.residuals() if steps else {}
        if present and present.keys() == self._kept.keys():
            kept = [self._kept[name] for name in present]  # buckets may be in another order
            torch._foreach_copy_(kept, [*present.values()])
        elif steps:
            self._kept = {name: one.clone() for name, one in present.items()}

    def leave(self, workers: int) -> FormerResiduals:
        """What this worker has not sent, as its group of so many members ends."""
        return FormerResiduals(
            self._bound.residuals(), dict(self._kept) if self._steps else None, workers
        )

    def end(self) -> None:
        """Note that the operation is complete."""
        self._steps = False
