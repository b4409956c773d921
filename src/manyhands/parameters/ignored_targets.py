"""Losses with ignored targets: the number of targets that count.

`cross_entropy` and `nll_loss` divide by the targets that are not `ignore_index`, or by the weights
of their classes. Means over parts of a batch must be weighted by that number, not by samples, to
give the mean over the batch. It is known only inside the loss, so the call is intercepted there.
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
"""Batches that are inspected on a GPU, where reading a number synchronises the device."""


class CountedLoss:
    """A job's loss that records the number of targets of its last mean.

    Args:
        loss: the job's own loss.
    """

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self.divided = ""
        """The strategy that averages several means, weighted by samples; empty if none does."""
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
        """The weight of the last mean, and the mean times that weight.

        The weight is the number of counted targets, or of samples if that number is unknown.
        """
        counted = (
            self._calls[0].to(mean.dtype)
            if len(self._calls) == 1
            else torch.full_like(mean, float(samples))
        )
        # The mean over no targets is NaN.
        return torch.stack([counted, torch.where(counted > 0, mean * counted, 0.0)])

    def _compare(self, all_: int) -> None:
        """Warn, once, if means with equal weights have different numbers of targets."""
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
            f"{self.divided} weights means by samples, so the gradient of a step is not the mean "
            "over all counted targets, and differs from that of one worker. For equal results "
            "give every sample the same number of counted targets, or use a loss that is their "
            "sum divided by a constant",
            stacklevel=2,
        )


def own_loss(job: Job) -> Loss:
    """The job's original loss."""
    return job.loss.loss if isinstance(job.loss, CountedLoss) else job.loss


def counting(job: Job) -> tuple[Job, CountedLoss]:
    """The job with a `CountedLoss`, and that loss."""
    if isinstance(job.loss, CountedLoss):
        return job, job.loss
    loss = CountedLoss(job.loss)
    return replace(job, loss=loss), loss


def counting_among(job: Job, strategy: str, workers: int) -> Job:
    """The job of one of `workers` workers, whose means a strategy weights by samples."""
    counted, loss = counting(job)
    if workers > 1 or job.micro_batch is not None:
        loss.divided = strategy
    return counted


class _Watching(TorchFunctionMode):
    """While active, records the divisors of means over targets."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[torch.Tensor] = []
        self.all = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Inspect the calls that compute a mean."""
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
            # Targets are probabilities: all of them count.
            return
        counts = target != ignore_index
        self.all += target.numel()
        if weight is None:
            self.counted.append(counts.sum())
        else:
            self.counted.append((weight[target.clamp(min=0)] * counts).sum())
