"""Sums and means of a shard's bytes, each element in its own type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.parameters.layout import Shard


def add(shard: Shard, total: torch.Tensor, other: torch.Tensor, share: float) -> None:
    """Total ← total + share · other."""
    for mine, its in _pairs(shard, total, other):
        mine.add_(its, alpha=share)


def scale(shard: Shard, total: torch.Tensor, factor: float) -> None:
    """Total ← factor · total."""
    for stretch in shard.stretches:
        stretch.view(total).mul_(factor)
    for fragment in shard.buffers:
        scaled = fragment.bytes(total).clone().view(fragment.dtype).mul_(factor)
        fragment.bytes(total).copy_(scaled.view(total.dtype))


def lerp(shard: Shard, here: torch.Tensor, there: torch.Tensor, by: float) -> None:
    """Here ← here + by · (there − here), for parameters; buffers go all the way."""
    parameters = len(shard.stretches)
    for index, (mine, its) in enumerate(_pairs(shard, here, there)):
        if by == 1 or index >= parameters:
            mine.copy_(its)
        else:
            mine.add_(its - mine, alpha=by)


def trade(shard: Shard, here: torch.Tensor, there: torch.Tensor, by: float) -> None:
    """`lerp`, and `there` becomes what `here` was."""
    parameters = len(shard.stretches)
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
    for stretch in shard.stretches:
        torch.sub(stretch.view(one), stretch.view(other), out=stretch.view(result)).mul_(by)
    for fragment in shard.buffers:
        fragment.bytes(result).copy_(fragment.bytes(one))


def descend(
    here: torch.Tensor, target: torch.Tensor, velocity: torch.Tensor, rate: float, momentum: float
) -> None:
    """Nesterov's step of an outer optimizer: its gradient is the way from `target` to `here`."""
    way = here - target
    velocity.mul_(momentum).add_(way)
    here.sub_(way.add_(velocity, alpha=momentum), alpha=rate)


def _pairs(
    shard: Shard, one: torch.Tensor, other: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The parameters and buffers of two shards side by side, in their own type.

    A buffer need not be aligned where its shard is a part of a whole stretch, so it is worked on
    in a copy and put back.
    """
    for stretch in shard.stretches:
        yield stretch.view(one), stretch.view(other)
    for fragment in shard.buffers:
        mine = fragment.bytes(one).clone().view(fragment.dtype)
        its = fragment.bytes(other).clone().view(fragment.dtype)
        yield mine, its
        fragment.bytes(one).copy_(mine.view(one.dtype))
        fragment.bytes(other).copy_(its.view(other.dtype))
