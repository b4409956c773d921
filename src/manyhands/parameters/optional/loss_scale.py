"""The scale of a loss whose gradients are computed in float16, by the rules of `GradScaler`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_FIRST = 2.0**16
_GROWTH = 2.0
_BACKOFF = 0.5
_INTERVAL = 2000
"""The defaults of `torch.amp.GradScaler`."""


class LossScale:
    """A factor of the loss, so that small gradients are not 0 in float16.

    After a step whose gradient has an infinite number or NaN, which is not applied, the factor is
    halved; after 2000 steps without one it is doubled. `torch.amp.GradScaler` does the same. Here
    all workers decide by the same gradient, so all have the same factor.

    >>> scale = LossScale()
    >>> scale.update(overflowed=True)
    >>> scale.factor, scale.skipped
    (32768.0, 1)
    """

    def __init__(self) -> None:
        self.factor = _FIRST
        self.skipped = 0
        """Steps that were not applied."""
        self._since = 0

    def state(self) -> list[float]:
        """What it has noted."""
        return [self.factor, self.skipped, self._since]

    def restore(self, state: Sequence[float]) -> None:
        """Continue from what `state` returned."""
        self.factor, self.skipped, self._since = float(state[0]), int(state[1]), int(state[2])

    def update(self, *, overflowed: bool) -> None:
        """Note the next step."""
        if overflowed:
            self.factor *= _BACKOFF
            self.skipped += 1
            self._since = 0
            return
        self._since += 1
        if self._since == _INTERVAL:
            self.factor *= _GROWTH
            self._since = 0


@torch.no_grad()
def overflows(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """The number of gradients that have an infinite number or NaN, as a tensor of one element."""
    dense = (one._values() if one.is_sparse else one for one in gradients)
    found = [1 - torch.isfinite(one).all().to(torch.int64).reshape(1) for one in dense]
    return torch.stack(found).sum(0) if found else torch.zeros(1, dtype=torch.int64)
