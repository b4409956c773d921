"""The weight of a mean loss: the number of samples, of targets or of tokens that it is over.

Means over parts of a batch must be weighted by what they are over to give the mean over the batch.
A loss is taken as a sum: means over targets, each with the number of its own targets
(`counted_means`), and a rest, whose weight is the number of samples. An objective that returns a
`Weighted` says its weight itself.

Where all workers take part in every step, they sum these numbers before the backward pass, and each
worker scales each of its means: a loss of several means is exact. Otherwise one update has one
weight, that of the first mean in the loss, and a loss of several means that count differently is
said to be inexact.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch

from manyhands.objective import Weighted
from manyhands.parameters.weights.counted_means import (
    WATCHED,
    CountedMean,
    WatchedLoss,
    all_count,
    reached,
    scale_gradients,
)
from manyhands.parameters.weights.microbatches import tensors
from manyhands.parameters.weights.weight_table import SAID, WeightTable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from manyhands.job import Job

    Balance = Callable[[WeightTable], WeightTable]

_NO_BATCH: Final = -1
_LOOKED: Final = 64
"""Batches that are inspected on a GPU, where reading a number synchronises the device."""


class CountedLoss:
    """A job's loss or objective that records what its last mean was over.

    Args:
        loss: the job's own loss or objective.
        aside: sites of means that are known to be no part of the loss.
    """

    def __init__(self, loss: Callable[[Any, Any], Any], aside: set[int] | None = None) -> None:
        self.loss = loss
        self.divided = ""
        """The strategy that averages several means; empty if none does."""
        self.may_drop = False
        """Whether a batch may have other samples than were asked for: the job collates itself."""
        self.counts = True
        """Whether means are weighed by what they count; otherwise by samples."""
        self.decided = False
        """Whether `counts` is final, because all workers have agreed."""
        self.balance: Balance | None = None
        """Sums the weights of all workers, within a step of workers that step together."""
        self.alone = True
        """Whether no other worker has a part of the batch."""
        self.balanced = False
        """Whether the means of the last loss were scaled by the weights of all workers."""
        self.looked = False
        """Whether this worker computes losses."""
        self.needs = False
        """Whether a batch so far had means whose weight is not its number of samples."""
        self.returned: Weighted | None = None
        """What an objective returned last."""
        self.aside = aside if aside is not None else set()
        self._direct = any(loss is one for one in WATCHED)
        """Whether the loss itself is inspected, so that no call within it has to be intercepted."""
        self._means: list[CountedMean] = []
        self._targets: int | None = None
        """The targets of the last batch, if all of them counted and its mean was not inspected."""
        self._reached: dict[tuple[int, ...], list[bool]] = {}
        """By the sites of a batch's means, which of them are part of the loss."""
        self._taken: torch.Tensor | None = None
        self._ratios: dict[int, float] = {}
        """What each mean counts per sample, in the first batch."""
        self._first: int | None = _NO_BATCH
        """The site of the first mean of the first batch; None if it had none."""
        self._looks = 0
        self._warned = self._missed = False

    def __call__(self, first: Any, second: Any) -> torch.Tensor:
        """The mean loss, of outputs and targets, or of a model and a batch."""
        if self._direct and self.decided and not self.counts and all_count(second):
            # Of most training steps: no mean has a weight, so one number is all that is compared.
            self._means, self.returned, self._targets = [], None, second.numel()
            return self.loss(first, second)  # type: ignore[no-any-return]
        self._targets = None
        watching = WatchedLoss()
        if self._direct:
            value = watching.call(self.loss, (first, second), {})
        else:
            with watching:
                value = self.loss(first, second)
        self.returned = value if isinstance(value, Weighted) else None
        if self.returned is not None:
            check_weight(self.returned)
            value = self.returned.mean
        self._means = watching.of(value) if isinstance(value, torch.Tensor) else []
        self.aside |= watching.aside
        return value  # type: ignore[no-any-return]

    def forget(self) -> None:
        """Agree anew on how means are weighed: the workers are others."""
        self.counts, self.decided = True, False

    def decide(self, *, counts: bool) -> None:
        """Weigh means by what they count from now on, or by samples, as all workers do."""
        self.counts, self.decided = counts, True

    def _parts(self, loss: torch.Tensor) -> list[CountedMean]:
        """The means over targets that the loss depends on."""
        means = self._means
        if not means or (len(means) == 1 and means[0].value is loss):
            return means
        if not loss.requires_grad:
            return [mean for mean in means if mean.site not in self.aside]
        sites = tuple(mean.site for mean in means)
        if sites not in self._reached:
            there = reached(loss, means)
            self._reached[sites] = [mean in there for mean in means]
            outside = {mean.site for mean in means if mean not in there}
            self.aside |= outside - {mean.site for mean in there}
        pairs = zip(means, self._reached[sites], strict=True)
        return [mean for mean, there in pairs if there]

    def share_out(self, loss: torch.Tensor, samples: int) -> torch.Tensor:
        """The loss, so scaled that the workers' mean of it is the loss of all their samples.

        Args:
            loss: what the last call returned.
            samples: the samples of the batch.
        """
        if self.balance is None:
            return loss
        self.balanced = True
        if self.alone:
            return loss
        if not self.counts:
            self._compare(loss, samples)
            return loss
        table = WeightTable.of(samples, loss.device)
        means: list[CountedMean] = []
        if self.returned is not None:
            table.put(SAID, self.returned.weight)
        else:
            means = table.take(self._means)
        if not self.decided:
            self._look_at(loss, samples)
            table.needs(self.needs)
        totals = self.balance(table)
        if self.returned is not None:
            return loss * table.factor(0, totals).to(loss.dtype)
        scale_gradients(means, [table.factor(at, totals) for at in range(len(means))])
        return loss

    def weight(self, mean: torch.Tensor, samples: float) -> torch.Tensor | None:
        """The weight of the last mean, where one update has one weight; None for its samples.

        Args:
            mean: what the last call returned.
            samples: the samples that it is over.
        """
        if not self.decided:
            self._look_at(mean, samples)
        self._compare(mean, samples)
        if not self.counts:
            return None
        if self.returned is not None:
            return torch.as_tensor(self.returned.weight, device=mean.device).detach().double()
        parts = self._parts(mean)
        return parts[0].counted.double() if parts else None

    def terms(
        self, loss: torch.Tensor, samples: int, *, one_weight: bool
    ) -> list[tuple[object, float, float]]:
        """The means whose sum is a loss: what each is, its weight, and its value.

        Args:
            loss: what the last call returned.
            samples: the samples that it is over.
            one_weight: whether the whole loss has one weight.
        """
        whole = float(loss.detach())
        if self.returned is not None:
            return [("said", float(torch.as_tensor(self.returned.weight).detach()), whole)]
        parts = self._parts(loss)
        if one_weight or not loss.requires_grad:
            return [("whole", float(parts[0].counted) if parts else float(samples), whole)]
        found: list[tuple[object, float, float]] = []
        numbers: dict[int, int] = {}
        slopes = torch.autograd.grad(loss, [one.value for one in parts]) if parts else ()
        for mean, slope in zip(parts, slopes, strict=True):
            number = numbers[mean.site] = numbers.get(mean.site, 0) + 1
            value = float(slope * mean.value.detach())
            found.append(((mean.site, number), float(mean.counted), value))
        return [*found, ("rest", float(samples), whole - sum(value for *_, value in found))]

    def add(self, weight: torch.Tensor) -> None:
        """Add the weight of a part to that of its batch."""
        self._taken = weight if self._taken is None else self._taken + weight

    def take(self) -> torch.Tensor | None:
        """The weight of all parts since the last call; None if no part had one."""
        taken, self._taken = self._taken, None
        return taken

    def sums(self, mean: torch.Tensor, samples: int) -> torch.Tensor:
        """The weight of the last mean, and the mean times that weight.

        The weight is the number of counted targets, or of samples if that number is unknown or
        there are several.
        """
        parts = [] if self.returned is not None else self._parts(mean)
        if self.returned is not None:
            counted = torch.as_tensor(self.returned.weight, device=mean.device).to(mean.dtype)
        elif len(parts) == 1:
            counted = parts[0].counted.to(mean.dtype)
        else:
            counted = torch.full_like(mean, float(samples))
        # The mean over no targets is NaN.
        return torch.stack([counted, torch.where(counted > 0, mean * counted, 0.0)])

    def _look_at(self, loss: torch.Tensor, samples: float) -> None:
        """Note whether the means of a loss have to be weighed by what they count."""
        self.looked = True
        self.needs = (
            self.needs
            or self.returned is not None
            or any(
                self.may_drop
                or mean.by_class
                or mean.targets != samples
                or float(mean.counted) != samples
                for mean in self._parts(loss)
            )
        )

    def _compare(self, loss: torch.Tensor, samples: float) -> None:
        """Warn, once, of means that the weight of the whole loss does not weigh."""
        if not self.divided or self._warned or self._targets == samples:
            return
        if self.returned is not None:
            if not self.counts:
                self._warn(
                    "the objective returned mh.Weighted for a batch, and no worker did so in the "
                    f"first step. {self.divided} weighs the workers' losses by their samples"
                )
            return
        parts = self._parts(loss)
        site = parts[0].site if parts else None
        if self._first == _NO_BATCH:
            self._first = site
        if self.counts and len(parts) < 2 and site == self._first:
            return
        self._looks += 1
        if self._looks > _LOOKED and any(one.counted.device.type != "cpu" for one in parts):
            return
        if self.counts:
            self._compare_means(parts, samples)
            return
        numbers = [(float(mean.counted), mean.targets) for mean in parts]
        if self._targets is not None:
            numbers = [(self._targets, self._targets)]
        for counted, targets in numbers:
            if counted != samples:
                self._warn(
                    f"the loss counts {counted:g} of {targets} targets of a batch of "
                    f"{samples:g} samples (ignore_index), and in the first step of every worker "
                    f"one for each sample. {self.divided} weighs the workers' losses by their "
                    "samples"
                )
                return

    def compare_with_batch(self, loss: torch.Tensor, batch: Any, samples: int) -> None:
        """Warn, once, of a batch that seems to have other samples than were asked for.

        Where means over targets or a `Weighted` say what they count, that is their weight.
        """
        if not self.may_drop or not self.divided or self._missed or self.returned is not None:
            return
        shapes = [tuple(one.shape) for one in tensors(batch)]
        if not shapes or any(samples in shape for shape in shapes) or self._parts(loss):
            return
        self._missed = True
        warnings.warn(
            f"collate_fn was given {samples} samples and returned no tensor of that length, but "
            f"{', '.join(map(str, shapes[:4]))}: it leaves out samples, or adds some, and the loss "
            f"does not say what it is a mean over. {self.divided} weighs a worker's loss by the "
            "samples that it was given, so it differs from that of one worker. For equal results "
            "return mh.Weighted(total, weight) from Job(objective=...)",
            stacklevel=2,
        )

    def _compare_means(self, parts: Sequence[CountedMean], samples: float) -> None:
        if not parts or parts[0].site != self._first:
            self._warn(
                "the loss of some batches is a mean over other targets than that of others, or "
                f"over none. {self.divided} weighs a worker's loss by the targets of its first "
                "mean, or by its samples if there is none"
            )
            return
        by = float(parts[0].counted)
        for mean in parts[1:]:
            own = float(mean.counted)
            ratio = own / by if by else math.inf
            if self._ratios.setdefault(mean.site, ratio) != ratio:
                self._warn(
                    f"the loss has several means, over {by:g} and {own:g} targets in a batch of "
                    f"{samples:g} samples, in other proportions than in another batch. "
                    f"{self.divided} weighs a worker's whole loss by the first one"
                )
                return

    def _warn(self, fact: str) -> None:
        self._warned = True
        warnings.warn(
            f"{fact}, so the gradient of a step is not that of the loss of all samples, and "
            "differs from that of one worker. For equal results return mh.Weighted(total, weight) "
            "with one weight for the whole loss from Job(objective=...), or, for a loss of several "
            "means, use allreduce(), fully_sharded() or zero() without micro_batch",
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
    """A new `CountedLoss` of the job's loss, or of each of its objectives.

    What was found in training to be no part of the loss is none in an evaluation.
    """
    known = (counted_loss(one) for one in job.one_by_one)
    return tuple(
        CountedLoss(own_loss(one), None if loss is None else loss.aside)
        for one, loss in zip(job.one_by_one, known, strict=True)
    )


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


def counting_among(job: Job, strategy: object = "", workers: int = 1) -> Job:
    """The job of a worker whose updates are sent with their weight.

    Args:
        job: the job.
        strategy: what the workers train under.
        workers: their number.
    """
    counted, losses = counting_each(job)
    for loss in losses:
        loss.decide(counts=True)
        loss.may_drop = job.collate_fn is not None
        if workers > 1 or job.micro_batch is not None:
            loss.divided = str(strategy)
    return counted
