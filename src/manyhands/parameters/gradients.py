"""From samples to gradients, as a job wants it done: the same under every strategy."""

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
    """The job's model, with checkpointed activations if the job wants them."""
    model = job.model()
    if job.activation_checkpointing:
        for unit in units(model):
            unit.forward = Checkpointed(unit.forward)
    return model


class Checkpointed:
    """A forward of which only the inputs are kept, to compute it again.

    Args:
        compute: the forward. Whoever changes what goes on around it must do so here: computing
            again knows nothing of what was in force when it was computed first.
    """

    def __init__(self, compute: Callable[..., Any]) -> None:
        self.compute = compute

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """What comes out."""
        if not torch.is_grad_enabled():
            return self.compute(*inputs, **options)
        return checkpoint(self.compute, *inputs, use_reentrant=False, **options)


def autocast(job: Job, device: torch.device) -> AbstractContextManager[object]:
    """In which outputs and losses are computed."""
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
    """Add `weight` times the gradient of the mean loss to the parameters' own; the loss.

    A batch of more samples than the job wants at once is computed in parts.

    Args:
        job: whose loss.
        device: where it is computed.
        forward: makes outputs of inputs.
        inputs: a batch.
        targets: what should come out.
        weight: see above.
        more_to_come: entered for all parts but the last.
        largest: where every part needs all workers: the samples of the largest of their batches,
            which decides how many parts there are. Who lacks one computes its first once more.
        agree: is given the loss before the backward pass; what it is to be multiplied with there,
            and the loss that is reported.
        check: is given the loss of every part before its backward pass; it may raise.
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
    """Refuse a loss that is not one number."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TypeError(
            "the loss must be one number for the batch, the mean over its samples; "
            f"got {getattr(loss, 'shape', type(loss).__name__)}"
        )


def _first(value: Any) -> Any:
    """The first tensor of a batch, whatever it is in."""
    if isinstance(value, dict):
        return _first(next(iter(value.values())))
    return _first(value[0]) if isinstance(value, (list, tuple)) else value
