"""Computation of gradients by a job's settings, the same under every strategy."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from manyhands.objective import Weighted
from manyhands.parameters.initial.start import load_start
from manyhands.parameters.module_units import units
from manyhands.parameters.weights.loss_weight import check_weight, counted_loss
from manyhands.parameters.weights.microbatches import divide, rows_of, sizes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from manyhands.job import Job
    from manyhands.parameters.weights.loss_weight import CountedLoss

    Agree = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    Settle = Callable[[torch.Tensor, torch.Tensor], object]


def build(job: Job) -> nn.Module:
    """The job's model with its initial values, prepared as the job asks for.

    That is synchronised batch norm, and activation checkpointing.
    """
    model = job.model()
    load_start(job, model)
    if job.sync_batchnorm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]  # torch's
    if job.activation_checkpointing:
        for unit in units(model):
            unit.forward = Checkpointed(unit.forward)
    return model


class Checkpointed:
    """A forward with activation checkpointing: only its inputs are kept, for recomputation.

    Args:
        compute: the forward. Modes and contexts that it needs must be entered here, because they
            are not active any more when it is recomputed.
    """

    def __init__(self, compute: Callable[..., Any]) -> None:
        self.compute = compute

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """The outputs."""
        if not torch.is_grad_enabled():
            return self.compute(*inputs, **options)
        return checkpoint(self.compute, *inputs, use_reentrant=False, **options)


def autocast(job: Job, device: torch.device) -> AbstractContextManager[object]:
    """The autocast context in which outputs and losses are computed."""
    if job.autocast is None:
        return contextlib.nullcontext()
    return torch.autocast(device.type, getattr(torch, job.autocast))


class CalledModel:
    """The model as an objective sees it: calls go through a strategy, the rest is the model's own.

    Args:
        model: the worker's model.
        forward: computes outputs, for instance through a strategy's hooks.
        within: computes the objective: `within(objective, model, batch)`. Where a strategy has to
            know when the forward pass begins and ends, it is the forward of a module, which DDP
            wraps. So an objective may call parts of the model, and each of them several times.
    """

    def __init__(
        self,
        model: nn.Module,
        forward: Callable[..., Any],
        within: Callable[[Callable[..., Any], Any, Any], Any] | None = None,
    ) -> None:
        self._model = model
        self._forward = forward
        self._within = within

    def compute(self, objective: Callable[[Any, Any], Any], batch: Any) -> Any:
        """What an objective returns for a batch."""
        if self._within is None:
            return objective(self, batch)
        return self._within(objective, self, batch)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """The model's outputs."""
        return self._forward(*inputs, **options)

    def __getitem__(self, key: Any) -> Any:
        """A part of a model that is a `ModuleDict`, a `ModuleList` or a `Sequential`."""
        return self._model[key]  # type: ignore[index]  # of those modules alone

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class ObjectiveModule(nn.Module):
    """A module whose forward computes an objective of a model.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, objective: Callable[..., Any], model: Any, batch: Any) -> Any:
        """What the objective returns."""
        return objective(model, batch)


def compute_loss(job: Job, forward: Callable[..., Any], inputs: Any, targets: Any) -> torch.Tensor:
    """The mean loss of a batch, by the job's loss or objective.

    Args:
        job: the job.
        forward: computes outputs; for an objective it is what stands for the model.
        inputs: the inputs; the whole batch of a job with an objective.
        targets: the targets of these inputs; None with an objective.
    """
    if job.objective is None:
        return job.criterion(forward(inputs), targets)  # type: ignore[no-any-return]
    objective = job.criterion
    loss: torch.Tensor | Weighted
    if isinstance(forward, CalledModel):
        loss = forward.compute(objective, inputs)
    else:
        loss = objective(forward, inputs)
    if isinstance(loss, Weighted):
        check_weight(loss)
        return loss.mean
    return loss


def backward(
    job: Job,
    device: torch.device,
    forward: Callable[..., Any],
    inputs: Any,
    targets: Any,
    samples: int,
    weight: float = 1.0,
    more_to_come: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    largest: int = 0,
    agree: Agree | None = None,
    check: Callable[[torch.Tensor], object] | None = None,
    settle: Settle | None = None,
) -> torch.Tensor:
    """Add `weight` times the gradient of the mean loss to the parameters'; return the loss.

    A batch of more samples than the job's `micro_batch` is computed in parts.

    Where the job's `CountedLoss` has a `balance`, the weights of all workers are summed before the
    backward pass, and the mean over the workers of what is computed is the gradient of the loss of
    all samples. Otherwise, if the loss has a weight of its own, such as a number of tokens, the
    gradient is `weight` / samples times that of the total: the mean over all workers is known only
    when all weights are. The `CountedLoss` has the weight of the batch then.

    Args:
        job: the job that defines the loss.
        device: the device of the computation.
        forward: computes outputs from inputs.
        inputs: a batch.
        targets: the targets of these inputs.
        samples: how many samples the batch was asked for with: those of a lease, or of a share.
        weight: see above.
        more_to_come: context that is entered for all parts but the last.
        largest: samples of the largest batch of all workers, if every part needs a collective. It
            decides the number of parts; a worker with fewer parts computes its first one again.
        agree: called with the loss before the backward pass; returns the factor of the loss for the
            backward pass, the loss to report, and the weight of the part.
        check: called with the loss of every part before its backward pass; it may raise.
        settle: called before the last backward pass with the weight of the batch, if the loss has
            one, and the factor by which accumulated gradients then are those of its mean.
    """
    count = 1 if job.micro_batch is None else -(-max(samples, largest) // job.micro_batch)
    part = _Part(job, device, forward, agree, check)
    if job.micro_batch is None and agree is None and part.shares_out:
        part.backward(part.shared_out(inputs, targets, samples), weight)
        return part.reported
    if count == 1:
        loss, own = part.loss(inputs, targets, samples)
        if part.counted is not None:
            part.counted.compare_with_batch(loss, (inputs, targets), samples)
        if own is None:
            part.backward(loss, weight)
        elif settle is None:
            part.backward(loss, weight * own / samples)
        else:
            settle(own, torch.ones_like(own))
            part.backward(loss, weight)
        return part.reported
    rows = rows_of((inputs, targets), samples)
    sizes = sizes_of(rows, min(count, rows))
    total, weights = torch.zeros((), device=device), torch.zeros((), device=device)
    # What was asked for with more or fewer rows than samples counts as so many samples.
    counts = [size * samples / rows for size in sizes]
    parts = [*zip(divide(inputs, sizes), divide(targets, sizes), counts, strict=True)]
    parts += [(*parts[0][:2], 0.0)] * (count - len(parts))
    weighted = False
    for number, (some, wanted, size) in enumerate(parts):
        last = number == count - 1
        with contextlib.nullcontext() if last else more_to_come():
            loss, own = part.loss(some, wanted, size)
            if own is None:
                total = total + part.reported * (size / samples)
                part.backward(loss, weight * size / samples)
                continue
            weighted, weights = True, weights + own
            total = total + part.reported * own
            if last and settle is not None:
                settle(weights, samples / _at_least_one(weights))
            part.backward(loss, weight * own / samples)
    return total / _at_least_one(weights) if weighted else total


def _at_least_one(weight: torch.Tensor) -> torch.Tensor:
    """The weight; 1 in place of 0."""
    return torch.where(weight > 0, weight, 1)


def evaluate_batch(
    job: Job,
    measured: Sequence[CountedLoss],
    device: torch.device,
    forward: Callable[..., Any],
    inputs: Any,
    targets: Any,
) -> tuple[list[torch.Tensor], Any, Any] | None:
    """The losses of a batch, and the outputs and targets that metrics compare.

    Args:
        job: the job.
        measured: its loss, or its objectives.
        device: the device of the computation.
        forward: computes outputs, or None if this worker has none; with an objective, the model.
        inputs: see `compute_loss`.
        targets: see `compute_loss`.

    Returns:
        The loss of each objective, and the outputs and targets of the last one that has them.
    """
    with autocast(job, device):
        if job.objective is None:
            outputs = forward(inputs)
            if outputs is None:
                return None
            return [measured[0](outputs, targets).double().reshape(())], outputs, targets
        losses = [one(forward, inputs) for one in measured]
    found: Weighted | None = None
    for loss, one in zip(losses, measured, strict=True):
        check_scalar(loss)
        if one.returned is not None and one.returned.outputs is not None:
            found = one.returned
    if job.metric_objects and (found is None or found.targets is None):
        names = ", ".join(metric.name for metric in job.metric_objects)
        raise TypeError(
            f"the metrics {names} need outputs and targets: return mh.Weighted(total, weight, "
            "outputs, targets) from the objective, or give metrics=()"
        )
    outputs, targets = (None, None) if found is None else (found.outputs, found.targets)
    return [loss.double().reshape(()) for loss in losses], outputs, targets


class _Part:
    """Computes parts of a batch, one after the other."""

    def __init__(
        self,
        job: Job,
        device: torch.device,
        forward: Callable[..., Any],
        agree: Agree | None,
        check: Callable[[torch.Tensor], object] | None,
    ) -> None:
        self._job = job
        self._device = device
        self._forward = forward
        self._agree = agree
        self._check = check
        self.counted = counted_loss(job)
        self.reported = torch.zeros(())
        """The loss to report of the last part."""

    @property
    def shares_out(self) -> bool:
        """Whether the weights of all workers are summed before the backward pass."""
        return self.counted is not None and self.counted.balance is not None

    def shared_out(self, inputs: Any, targets: Any, samples: int) -> torch.Tensor:
        """The loss of the batch, scaled by the weights of all workers."""
        loss = self._compute(inputs, targets)
        if self.counted is None:
            return loss
        self.counted.compare_with_batch(loss, (inputs, targets), samples)
        return self.counted.share_out(loss, samples)

    def _compute(self, inputs: Any, targets: Any) -> torch.Tensor:
        with autocast(self._job, self._device):
            loss = compute_loss(self._job, self._forward, inputs, targets)
        check_scalar(loss)
        self.reported = loss.detach()
        if self._check is not None:
            self._check(self.reported)
        return loss

    def loss(
        self, inputs: Any, targets: Any, samples: float
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The loss of a part, and its weight if that is not its samples; 0 samples do not count."""
        loss = self._compute(inputs, targets)
        own = None if self.counted is None else self.counted.weight(loss, samples or 1)
        if self._agree is not None:
            factor, self.reported, agreed = self._agree(self.reported)
            loss = loss * factor
            own = None if own is None else agreed
        if own is not None and self.counted is not None:
            own = own if samples else torch.zeros_like(own)
            self.counted.add(own)
        return loss, own

    @staticmethod
    def backward(loss: torch.Tensor, weight: float | torch.Tensor) -> None:
        """Add the gradient of a part's loss, times a weight."""
        plain = not isinstance(weight, torch.Tensor) and weight == 1
        (loss if plain else loss * weight).backward()  # type: ignore[no-untyped-call]


def check_scalar(loss: object) -> None:
    """Raise TypeError for a loss that is not a scalar."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TypeError(
            "the loss must be a scalar tensor, the mean over the samples of the batch, "
            f"got {getattr(loss, 'shape', type(loss).__name__)}"
        )
