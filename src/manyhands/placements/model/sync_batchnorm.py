"""Batch norm over the samples of all workers, on any device.

`torch.nn.SyncBatchNorm` computes on GPUs only, needs torch's default process group, and normalises
by itself where there is none. Its layers are replaced by `GroupBatchNorm` here, which uses the
workers' own group and weighs each worker by its samples, so that N workers equal one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


def synchronise(model: nn.Module, group: Group, waits: Waits) -> list[GroupBatchNorm]:
    """Have the `SyncBatchNorm` layers of a model use a group; return them.

    All workers of the group must call it. The layers get connections of their own, because their
    collectives are in no fixed order to those of gradients.

    Args:
        model: the model; its layers keep their parameters and names.
        group: the workers, each of which computes a part of every batch.
        waits: records the waits for other workers.
    """
    layers = [one for one in model.modules() if isinstance(one, nn.SyncBatchNorm)]
    if not layers:
        return []
    # Also for one worker: DDP refuses torch's layers on the CPU.
    own = group if group.size == 1 else group.part("batchnorm", range(group.size))
    return [GroupBatchNorm.take_place(layer, own, waits) for layer in layers]


class GroupBatchNorm(_BatchNorm):
    """Batch norm with the mean and the variance over all workers' samples.

    With n_k values per channel on worker k, their mean μ_k and sum of squared differences M_k:

        n = Σ n_k,   μ = Σ n_k·μ_k / n,   σ² = (Σ M_k + Σ n_k·(μ_k − μ)²) / n
    """

    group: Group
    waits: Waits
    counts: bool = True
    """Whether the samples of this worker count; they do not if they are another worker's."""

    @staticmethod
    def take_place(layer: Any, group: Group, waits: Waits) -> GroupBatchNorm:
        """Make a layer of torch one of this class.

        In place: parameters, hooks and names stay, also if the layer is the model itself.
        """
        layer.__class__ = GroupBatchNorm
        layer.group, layer.waits = group, waits
        return cast("GroupBatchNorm", layer)

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002 - torch's name
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input, got {input.dim()}D")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """The normalised input; in evaluation, by the running statistics."""
        if not self.training or self.group.size == 1:
            return super().forward(input)
        self._check_input_dim(input)
        wide = input.float() if input.element_size() < 4 else input
        mean, variance, total = self._statistics(wide.detach())
        self._track(mean, variance, total)
        outputs: torch.Tensor = _Normalise.apply(  # type: ignore[no-untyped-call]  # torch's
            wide, self.weight, self.bias, mean, variance, total, self
        )
        return outputs.to(input.dtype)

    @torch.no_grad()
    def _statistics(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
        """The mean and the variance of each channel over all workers, and the values in each."""
        channels = values.shape[1]
        dims = [dim for dim in range(values.dim()) if dim != 1]
        mean = values.double().mean(dims)
        squares = (values.double() - _by_channel(mean, values)).square().sum(dims)
        count = values.numel() // channels if self.counts else 0
        own = torch.cat([mean, squares, mean.new_tensor([count])])
        everyone = own.new_empty(self.group.size, len(own))
        self.waits.tally("all_gather", everyone.nbytes, self.group.size)
        self.waits.begin()
        self.group.gather(everyone, own)
        self.waits.end()
        means, sums, counts = everyone.split_with_sizes([channels, channels, 1], dim=1)
        total = float(counts.sum())
        if total <= 1:
            raise ValueError(
                "batch norm needs more than 1 value per channel in training, got input of shape "
                f"{list(values.shape)} on all workers together: use a larger global batch"
            )
        mean = (means * counts).sum(0) / total
        inside = torch.where(counts > 0, sums, 0.0).sum(0)
        variance = (inside + (counts * (means - mean).square()).sum(0)) / total
        return mean, variance, total

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, variance: torch.Tensor, total: float) -> None:
        """Update the running statistics, which are the same on all workers."""
        if self.running_mean is None or self.running_var is None:
            return
        share = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if share is None:
                share = 1 / float(self.num_batches_tracked)
        unbiased = variance * (total / (total - 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share or 0.0)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share or 0.0)


class _Normalise(torch.autograd.Function):
    """(x − μ) / √(σ² + ε) · weight + bias, where μ and σ² depend on all workers' x."""

    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        mean: torch.Tensor,
        variance: torch.Tensor,
        total: float,
        layer: GroupBatchNorm,
    ) -> torch.Tensor:
        scale = (variance + layer.eps).rsqrt()
        standard = (values - _by_channel(mean, values)) * _by_channel(scale, values)
        ctx.save_for_backward(standard, weight, scale)
        ctx.total, ctx.layer, ctx.counts = total, layer, layer.counts
        outputs = standard if weight is None else standard * _by_channel(weight, values)
        return outputs if bias is None else outputs + _by_channel(bias, values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        standard, weight, scale = ctx.saved_tensors
        layer = ctx.layer
        dims = [dim for dim in range(gradient.dim()) if dim != 1]
        own = torch.stack(
            [gradient.double().sum(dims), (gradient.double() * standard.double()).sum(dims)]
        )
        of_bias, of_weight = (one.to(gradient.dtype) for one in own)
        sums = own.clone()
        layer.waits.tally("allreduce", sums.nbytes, layer.group.size)
        layer.waits.begin()
        layer.group.sum(sums)
        layer.waits.end()
        shift, slope = (_by_channel(one / ctx.total, gradient) for one in sums)
        of_values = (gradient - shift - standard * slope) * _by_channel(scale, gradient)
        if weight is not None:
            of_values = of_values * _by_channel(weight, gradient)
        if not ctx.counts:
            # These samples have no part in the statistics, and their loss has the weight 0.
            of_values = torch.zeros_like(of_values)
        known = ctx.needs_input_grad
        return (
            of_values,
            of_weight if known[1] else None,
            of_bias if known[2] else None,
            *(None,) * 4,
        )


def _by_channel(vector: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A value per channel, for dim 1 of a tensor."""
    return vector.to(like.dtype).view(1, -1, *(1,) * (like.dim() - 2))
