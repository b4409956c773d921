"""Losses that leave targets out: how many of a batch count.

`cross_entropy` and `nll_loss` divide by the targets that are not `ignore_index`, or by the weights
of their classes. Means of parts of a batch must be weighed by that number, not by samples, or their
mean is not that of the batch. It is known only inside of the loss, so the call is watched there.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from manyhands.job import Job, Loss

_WATCHED: Final = {functional.cross_entropy, functional.nll_loss}
_LOOKED: Final = 64
"""Batches that are looked at on a GPU, where reading a number stops the device."""


class CountedLoss:
    """A job's loss that knows how many targets its last mean was taken over.

    Args:
        loss: the job's own.
    """

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self.divided = ""
        """What takes the mean of several means, weighed by samples; empty if nothing does."""
        self._calls: list[torch.Tensor] = []
        self._share: float | None = None
        self._looks = 0
        self._warned = False

    def __call__(self, outputs: Any, targets: Any) -> torch.Tensor:
        """The loss."""
        watching = _Watching()
        with watching:
            value = self.loss(outputs, targets)
        self._calls = watching.counted
        if self.divided and not self._warned and len(self._calls) == 1:
            self._compare(watching.all)
        return value

    def sums(self, mean: torch.Tensor, samples: int) -> torch.Tensor:
        """What the last mean counts for beside others, and the mean times that.

        It counts for its targets; for its samples, if it is not known how many targets there are.
        """
        counted = (
            self._calls[0].to(mean.dtype)
            if len(self._calls) == 1
            else torch.full_like(mean, float(samples))
        )
        # The mean over no targets is not a number.
        return torch.stack([counted, torch.where(counted > 0, mean * counted, 0.0)])

    def _compare(self, all_: int) -> None:
        """Warn, once, when means that are weighed alike were taken over different numbers."""
        self._looks += 1
        if self._calls[0].device.type != "cpu" and self._looks > _LOOKED:
            return
        counted = float(self._calls[0])
        share = counted / max(1, all_)
        if self._share is None:
            self._share = share
        if abs(share - self._share) <= 1e-6 * self._share:
            return
        self._warned = True
        warnings.warn(
            f"the loss counts {counted:g} of {all_} targets of one batch "
            f"({share:.0%}) and {self._share:.0%} of another (ignore_index or class weights). "
            f"{self.divided} weighs means by samples, so the gradient of a step is not the mean "
            "over all targets that count, and differs from that of one worker. For equal results "
            "give every sample as many targets that count, or let the loss be their sum, divided "
            "by a constant",
            stacklevel=2,
        )


def own_loss(job: Job) -> Loss:
    """The job's loss as the user gave it."""
    return job.loss.loss if isinstance(job.loss, CountedLoss) else job.loss


def counting(job: Job) -> tuple[Job, CountedLoss]:
    """The job with a loss that is counted, and that loss."""
    if isinstance(job.loss, CountedLoss):
        return job, job.loss
    loss = CountedLoss(job.loss)
    return replace(job, loss=loss), loss


def counting_among(job: Job, strategy: str, workers: int) -> Job:
    """The job of one of so many workers, whose means a strategy weighs by samples."""
    counted, loss = counting(job)
    if workers > 1 or job.micro_batch is not None:
        loss.divided = strategy
    return counted


class _Watching(TorchFunctionMode):
    """While it is active, means over targets are noted with what they are divided by."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[torch.Tensor] = []
        self.all = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Look at the calls that take a mean."""
        kwargs = kwargs or {}
        if func in _WATCHED:
            self._look(*args, **kwargs)
        return func(*args, **kwargs)

    def _look(
        self,
        _: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None = None,
        size_average: object = None,
        ignore_index: int = -100,
        reduce: object = None,
        reduction: str = "mean",
        **_rest: object,
    ) -> None:
        if reduction != "mean" or size_average is not None or reduce is not None:
            return
        if target.is_floating_point():
            # Probabilities: all of them count.
            return
        counts = target != ignore_index
        self.all += target.numel()
        if weight is None:
            self.counted.append(counts.sum())
        else:
            self.counted.append((weight[target.clamp(min=0)] * counts).sum())
