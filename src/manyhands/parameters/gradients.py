"""Computation of gradients by a job's settings, the same under every strategy."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from manyhands.parameters.microbatches import divide, sizes_of
from manyhands.parameters.module_units import units

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import nn

    from manyhands.job import Job

    Agree = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def build(job: Job) -> nn.Module:
    """The job's model, with activation checkpointing if the job asks for it."""
    model = job.model()
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


def backward(
    job: Job,
    device: torch.device,
    forward: Callable[[Any], Any],
    inputs: Any,
    targets: Any,
    weight: float = 1.0,
    more_to_come: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    largest: int = 0,
    agree: Agree | None = None,
    check: Callable[[torch.Tensor], object] | None = None,
) -> torch.Tensor:
    """Add `weight` times the gradient of the mean loss to the parameters'; return the loss.

    A batch of more samples than the job's `micro_batch` is computed in parts.

    Args:
        job: the job that defines the loss.
        device: the device of the computation.
        forward: computes outputs from inputs.
        inputs: a batch.
        targets: the targets of these inputs.
        weight: see above.
        more_to_come: context that is entered for all parts but the last.
        largest: samples of the largest batch of all workers, if every part needs a collective. It
            decides the number of parts; a worker with fewer parts computes its first one again.
        agree: called with the loss before the backward pass; returns the factor of the loss for the
            backward pass, and the loss to report.
        check: called with the loss of every part before its backward pass; it may raise.
    """
    samples = len(_first(inputs))
    count = 1 if job.micro_batch is None else -(-max(samples, largest) // job.micro_batch)
    if count == 1:
        return _backward(job, device, forward, inputs, targets, weight, agree, check)
    sizes = sizes_of(samples, min(count, samples))
    total = torch.zeros((), device=device)
    parts = [*zip(divide(inputs, sizes), divide(targets, sizes), sizes, strict=True)]
    parts += [(*parts[0][:2], 0)] * (count - len(parts))
    for number, (some, wanted, size) in enumerate(parts):
        last = number == count - 1
        with contextlib.nullcontext() if last else more_to_come():
            share = weight * size / samples
            loss = _backward(job, device, forward, some, wanted, share, agree, check)
        total = total + loss * (size / samples)
    return total


def _backward(
    job: Job,
    device: torch.device,
    forward: Callable[[Any], Any],
    inputs: Any,
    targets: Any,
    weight: float,
    agree: Agree | None = None,
    check: Callable[[torch.Tensor], object] | None = None,
) -> torch.Tensor:
    with autocast(job, device):
        loss = job.loss(forward(inputs), targets)
    check_scalar(loss)
    reported = loss.detach()
    if check is not None:
        check(reported)
    if agree is not None:
        factor, reported = agree(reported)
        loss = loss * factor
    (loss if weight == 1 else loss * weight).backward()  # type: ignore[no-untyped-call]
    return reported


def check_scalar(loss: object) -> None:
    """Raise TypeError for a loss that is not a scalar."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TypeError(
            "the loss must be a scalar tensor, the mean over the samples of the batch, "
            f"got {getattr(loss, 'shape', type(loss).__name__)}"
        )


def _first(value: Any) -> Any:
    """The first tensor in a nested batch."""
    if isinstance(value, dict):
        return _first(next(iter(value.values())))
    return _first(value[0]) if isinstance(value, (list, tuple)) else value
