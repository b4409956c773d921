"""Exponential moving average of the parameters of one process."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class WeightAverage:
    """Ā ← d·Ā + (1 − d)·W after every global batch; the first one copies W.

    As `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn`. It is elementwise, so a
    process averages the parts of the parameters that it has.

    Args:
        decay: d.
        parameters: the tensors that are trained in place; not gathered, not copied.

    >>> weights = [torch.tensor([0.0])]
    >>> average = WeightAverage(0.75, weights)
    >>> for value in (4.0, 8.0):
    ...     weights[0].fill_(value), average.update(1.0)
    (tensor([4.]), None)
    (tensor([8.]), None)
    >>> with average.in_place():
    ...     weights[0].item()
    5.0
    >>> weights[0].item()
    8.0
    """

    def __init__(self, decay: float, parameters: Sequence[torch.Tensor]) -> None:
        self._decay = decay
        self._parameters = [one.detach() for one in parameters if one.is_floating_point()]
        self._average: list[torch.Tensor] = []

    def tensors(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each parameter with its average; empty before the first update."""
        return list(zip(self._parameters, self._average, strict=False))

    @torch.no_grad()
    def restore(self, averages: Sequence[torch.Tensor]) -> None:
        """Continue from these averages, in the order of the parameters."""
        self._average = [
            one.to(like.device, like.dtype).clone()
            for one, like in zip(averages, self._parameters, strict=True)
        ]

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The tensors that are averaged."""
        return self._parameters

    @torch.no_grad()
    def update(self, weight: float) -> None:
        """Add the parameters after a step; a part of a global batch has the weight of that part.

        A step with half of a batch moves the average by 1 − √d, so that two of them count as one
        with all of it.
        """
        if self._average:
            share = 1 - self._decay**weight
            torch._foreach_lerp_(self._average, self._parameters, share)
        else:
            self._average = [one.clone() for one in self._parameters]

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Context in which the parameters have the averaged values."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    @torch.no_grad()
    def exchange(self) -> None:
        """Exchange the values of the parameters and of the average."""
        for one, mean in zip(self._parameters, self._average, strict=False):
            kept = one.clone()
            one.copy_(mean)
            mean.copy_(kept)
