"""Arithmetic on a shard's bytes, each element in its own dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from manyhands.codecs.kernels.finite import not_finite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.codecs.kernels.finite import NotFinite
    from manyhands.parameters.layout import Shard


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, as a view.

    >>> as_bytes(torch.tensor([1.0, 2.0], dtype=torch.float16)).tolist()
    [0, 60, 0, 64]
    """
    if tensor.dtype == torch.uint8 and tensor.dim() == 1:
        return tensor
    if not tensor.is_contiguous():
        raise ValueError("a payload must be contiguous: call .contiguous() on it")
    return tensor.detach().view(-1).view(torch.uint8)


def not_finite_in(shard: Shard, flat: torch.Tensor) -> NotFinite:
    """What the parameters or the buffers of a shard have that is no finite number."""
    for part in shard.flat_by_dtype:
        if found := not_finite(part.view(flat)):
            return found
    for fragment in shard.buffers:
        if found := not_finite(fragment.bytes(flat).clone().view(fragment.dtype)):
            return found
    return ""


def add(shard: Shard, total: torch.Tensor, other: torch.Tensor, share: float) -> None:
    """Total ← total + share · other."""
    for mine, its in _pairs(shard, total, other):
        mine.add_(its, alpha=share)


def scale(shard: Shard, total: torch.Tensor, factor: float) -> None:
    """Total ← factor · total."""
    for flat in shard.flat_by_dtype:
        flat.view(total).mul_(factor)
    for fragment in shard.buffers:
        scaled = fragment.bytes(total).clone().view(fragment.dtype).mul_(factor)
        fragment.bytes(total).copy_(scaled.view(total.dtype))


def lerp(shard: Shard, here: torch.Tensor, there: torch.Tensor, by: float) -> None:
    """Here ← here + by · (there − here), for parameters; buffers become those of `there`."""
    parameters = len(shard.flat_by_dtype)
    for index, (mine, its) in enumerate(_pairs(shard, here, there)):
        if by == 1 or index >= parameters:
            mine.copy_(its)
        else:
            mine.add_(its - mine, alpha=by)


def trade(shard: Shard, here: torch.Tensor, there: torch.Tensor, by: float) -> None:
    """As `lerp`, and `there` becomes the old `here`."""
    parameters = len(shard.flat_by_dtype)
    for index, (mine, its) in enumerate(_pairs(shard, here, there)):
        if index >= parameters:
            its.copy_(mine)
            continue
        before = mine.clone()
        mine.add_(its - mine, alpha=by)
        its.copy_(before)


def difference(
    shard: Shard, result: torch.Tensor, one: torch.Tensor, other: torch.Tensor, by: float
) -> None:
    """Result ← by · (one − other), for parameters; buffers are those of `one`."""
    for flat in shard.flat_by_dtype:
        torch.sub(flat.view(one), flat.view(other), out=flat.view(result)).mul_(by)
    for fragment in shard.buffers:
        fragment.bytes(result).copy_(fragment.bytes(one))


def descend(
    here: torch.Tensor, target: torch.Tensor, velocity: torch.Tensor, rate: float, momentum: float
) -> None:
    """An outer step with Nesterov momentum; its gradient is `here` − `target`."""
    way = here - target
    velocity.mul_(momentum).add_(way)
    here.sub_(way.add_(velocity, alpha=momentum), alpha=rate)


def _pairs(
    shard: Shard, one: torch.Tensor, other: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of the parameters and buffers of two shards, as views in their own dtype.

    A buffer may be unaligned if its shard is a part of a larger tensor, so it is processed in a
    copy and written back.
    """
    for flat in shard.flat_by_dtype:
        yield flat.view(one), flat.view(other)
    for fragment in shard.buffers:
        mine = fragment.bytes(one).clone().view(fragment.dtype)
        its = fragment.bytes(other).clone().view(fragment.dtype)
        yield mine, its
        fragment.bytes(one).copy_(mine.view(one.dtype))
        fragment.bytes(other).copy_(its.view(other.dtype))
