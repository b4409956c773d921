"""The weight of a mean loss: the number of samples, of targets or of tokens that it is over.

`cross_entropy` and `nll_loss` divide by the targets that are not `ignore_index`, or by the weights
of their classes. Means over parts of a batch must be weighted by that number, not by samples, to
give the mean over the batch. It is known only inside the loss, so the call is intercepted there. An
objective that returns a `Weighted` says it itself.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from manyhands.objective import Weighted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from manyhands.job import Job

WATCHED: Final = {functional.cross_entropy, functional.nll_loss}
"""Functions that compute a mean over targets."""
_POSITIONAL: Final = 6
"""Positional arguments before `reduction`."""
_LOOKED: Final = 64
"""Batches that are inspected on a GPU, where reading a number synchronises the device."""


class CountedLoss:
    """A job's loss or objective that records what its last mean was over.

    Args:
        loss: the job's own loss or objective.
    """

    def __init__(self, loss: Callable[[Any, Any], Any]) -> None:
        self.loss = loss
        self.divided = ""
        """The strategy that averages several means, weighted by samples where a mean over targets
        looks like one over samples; empty if none does."""
        self.singles = False
        """Whether losses with one target per sample are weighted by their targets, too. This needs
        a runtime to which it makes no difference whether a worker has a weight."""
        self.returned: Weighted | None = None
        """What an objective returned last."""
        self._direct = any(loss is one for one in WATCHED)
        """Whether the loss itself is inspected, so that no call within it has to be intercepted."""
        self._calls: list[torch.Tensor] = []
        self._all = 0
        self._by_class = False
        self._taken: torch.Tensor | None = None
        self._share: float | None = None
        self._looks = 0
        self._warned = False

    def __call__(self, first: Any, second: Any) -> torch.Tensor:
        """The mean loss, of outputs and targets, or of a model and a batch."""
        counts = _Counts()
        if self._direct:
            value = counts.call(self.loss, (first, second), {})
        else:
            with _Watching(counts):
                value = self.loss(first, second)
        self._calls, self._all = counts.counted, counts.all
        self._by_class = counts.by_class
        self.returned = value if isinstance(value, Weighted) else None
        if self.returned is not None:
            check_weight(self.returned)
            value = self.returned.mean
        return value  # type: ignore[no-any-return]

    def weight(self, mean: torch.Tensor, samples: int) -> torch.Tensor | None:
        """The weight of the last mean; None if it is its number of samples.

        All workers of a strategy get None, or none of them does: this depends on the loss and on
        the targets' shape, not on their values.
        """
        if self.returned is not None:
            return torch.as_tensor(self.returned.weight, device=mean.device).detach().double()
        if len(self._calls) != 1:
            return None
        if self._by_class or self._all > samples or self.singles:
            return self._calls[0].double()
        if self.divided and not self._warned:
            self._compare()
        return None

    def add(self, weight: torch.Tensor) -> None:
        """Add the weight of a part to that of its batch."""
        self._taken = weight if self._taken is None else self._taken + weight

    def take(self) -> torch.Tensor | None:
        """The weight of all parts since the last call; None if no part had one."""
        taken, self._taken = self._taken, None
        return taken

    def sums(self, mean: torch.Tensor, samples: int) -> torch.Tensor:
        """The weight of the last mean, and the mean times that weight.

        The weight is the number of counted targets, or of samples if that number is unknown.
        """
        if self.returned is not None:
            counted = torch.as_tensor(self.returned.weight, device=mean.device).to(mean.dtype)
        elif len(self._calls) == 1:
            counted = self._calls[0].to(mean.dtype)
        else:
            counted = torch.full_like(mean, float(samples))
        # The mean over no targets is NaN.
        return torch.stack([counted, torch.where(counted > 0, mean * counted, 0.0)])

    def _compare(self) -> None:
        """Warn, once, if means with equal weights have different numbers of targets."""
        self._looks += 1
        if self._calls[0].device.type != "cpu" and self._looks > _LOOKED:
            return
        counted = float(self._calls[0])
        share = counted / max(1, self._all)
        if self._share is None:
            self._share = share
        if abs(share - self._share) <= 1e-6 * self._share:
            return
        self._warned = True
        warnings.warn(
            f"the loss counts {counted:g} of {self._all} targets of one batch "
            f"({share:.0%}) and {self._share:.0%} of another (ignore_index). "
            f"{self.divided} weights means by samples if a sample has one target, so the gradient "
            "of a step is not the mean over all counted targets, and differs from that of one "
            "worker. For equal results leave out samples without a target, or return "
            "mh.Weighted(total, weight) from Job(objective=...)",
            stacklevel=2,
        )


def check_weight(value: Weighted) -> None:
    """Raise TypeError or ValueError for a weighted loss that is not one number and one weight."""
    for name in ("total", "weight"):
        given = getattr(value, name)
        if name == "weight" and isinstance(given, (int, float)):
            continue
        if not isinstance(given, torch.Tensor) or given.numel() != 1:
            raise TypeError(
                f"Weighted({name}=...) must be a scalar tensor, "
                f"got {getattr(given, 'shape', type(given).__name__)}"
            )


def own_loss(job: Job) -> Callable[[Any, Any], Any]:
    """The job's original loss or objective."""
    given = job.criterion
    return given.loss if isinstance(given, CountedLoss) else given


def measuring(job: Job) -> tuple[CountedLoss, ...]:
    """A new `CountedLoss` of the job's loss, or of each of its objectives."""
    return tuple(CountedLoss(own_loss(one)) for one in job.one_by_one)


def loss_values(sums: Sequence[float], objectives: Sequence[str]) -> dict[str, float]:
    """The loss by name, from what `CountedLoss.sums` returned, summed over batches.

    With several objectives it is the sum of their losses, and each has a name of its own.

    >>> loss_values([4.0, 2.0], ())
    {'loss': 0.5}
    >>> loss_values([4.0, 2.0, 4.0, 8.0], ["discriminator", "generator"])
    {'loss': 2.5, 'discriminator_loss': 0.5, 'generator_loss': 2.0}

    Args:
        sums: for each objective its weight, and its loss times that weight.
        objectives: the names of several objectives.
    """
    pairs = zip(sums[::2], sums[1::2], strict=True)
    losses = [total / weight if weight else math.nan for weight, total in pairs]
    named = zip(objectives, losses, strict=False)
    return {"loss": sum(losses)} | {f"{name}_loss": loss for name, loss in named}


def counted_loss(job: Job) -> CountedLoss | None:
    """The `CountedLoss` of a job that has one."""
    given = job.criterion
    return given if isinstance(given, CountedLoss) else None


def counting(job: Job) -> tuple[Job, CountedLoss]:
    """The job with a `CountedLoss`, and that loss."""
    known = counted_loss(job)
    if known is not None:
        return job, known
    loss = CountedLoss(own_loss(job))
    return (replace(job, loss=loss) if job.objective is None else job.with_objective(loss)), loss


def counting_each(job: Job) -> tuple[Job, tuple[CountedLoss, ...]]:
    """The job with a `CountedLoss` for each of its objectives, and these losses."""
    if not job.objective_names:
        counted, loss = counting(job)
        return counted, (loss,)
    losses = tuple(counting(one)[1] for one in job.one_by_one)
    return job.with_objective(dict(zip(job.objective_names, losses, strict=True))), losses


def counting_among(job: Job) -> Job:
    """The job of a worker whose updates are sent with their weight."""
    counted, losses = counting_each(job)
    for loss in losses:
        loss.singles = True
    return counted


class _Watching(TorchFunctionMode):
    """While active, records the divisors of means over targets.

    Args:
        counts: where they are recorded.
    """

    def __init__(self, counts: _Counts) -> None:
        super().__init__()
        self._counts = counts

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Inspect the calls that compute a mean."""
        kwargs = kwargs or {}
        return self._counts.call(func, args, kwargs) if func in WATCHED else func(*args, **kwargs)


class _Counts:
    """The divisors of means over targets."""

    def __init__(self) -> None:
        self.counted: list[torch.Tensor] = []
        self.all = 0
        self.by_class = False

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The mean that a function of torch computes, whose divisor is recorded."""
        if not self._look(*args, **kwargs) or len(args) > _POSITIONAL:
            return func(*args, **kwargs)
        counted = self.counted[-1]
        if counted.device.type == "cpu" and (not _has_values(counted) or counted > 0):
            return func(*args, **kwargs)
        # The mean over no targets is NaN, and so are its gradients; their sum is 0.
        total = func(*args, **{**kwargs, "reduction": "sum"})
        return total / torch.where(counted > 0, counted, 1).to(total.dtype)

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
    ) -> bool:
        """Record the divisor of a mean; return whether it is one over targets."""
        if reduction != "mean" or size_average is not None or reduce is not None:
            return False
        if target.is_floating_point():
            # Targets are probabilities: all of them count.
            return False
        self.all += target.numel()
        if weight is None and ignore_index < 0 and _all_classes(target):
            self.counted.append(_number(target.numel()))
            return True
        counts = target != ignore_index
        if weight is None:
            self.counted.append(counts.sum())
        else:
            self.by_class = True
            self.counted.append((weight[target.clamp(min=0)] * counts).sum())
        return True


def _all_classes(target: torch.Tensor) -> bool:
    """Whether targets in the host's memory are classes, none of them below 0."""
    here = target.device.type == "cpu" and _has_values(target) and target.numel() > 0
    return here and int(target.min()) >= 0


@lru_cache(maxsize=64)
def _number(value: int) -> torch.Tensor:
    """A number as a tensor, which must not be changed."""
    return torch.tensor(value)


def _has_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor has values: none has on the meta device, nor a fake one."""
    return not tensor.is_meta and type(tensor).__name__ != "FakeTensor"
