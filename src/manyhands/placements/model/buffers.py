"""Synchronisation of replicas' buffers, such as batch-norm statistics and counters."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from manyhands.placements.model.sync_batchnorm import GroupBatchNorm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from manyhands.transport.collectives import Group


@torch.no_grad()
def average_buffers(model: nn.Module, group: Group) -> None:
    """Synchronise buffers of all replicas: average floats, copy others from the first one.

    Batch-norm statistics are running means, so their mean over workers is the running mean over
    all the workers' batches; DDP's broadcast in every step would keep those of the first worker
    only (`docs/decisions/0004-buffers.md`). Counters are the same everywhere.
    """
    if group.size == 1:
        return
    floating = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if floating:
        flat = torch.cat([buffer.reshape(-1).double() for buffer in floating])
        group.sum(flat)
        flat /= group.size
        sizes = [buffer.numel() for buffer in floating]
        for buffer, mean in zip(floating, flat.split_with_sizes(sizes), strict=True):
            buffer.copy_(mean.view_as(buffer))
    for buffer in model.buffers():
        if not buffer.is_floating_point():
            group.broadcast(buffer)


@contextlib.contextmanager
def untouched(model: nn.Module, *, when: bool) -> Iterator[None]:
    """Restore the model's buffers afterwards, because these samples must not change them.

    Statistics over all workers are the same on all of them, and stay.
    """
    if not when:
        yield
        return
    own = [
        buffer
        for module in model.modules()
        if not isinstance(module, GroupBatchNorm)
        for buffer in module.buffers(recurse=False)
    ]
    kept = [buffer.clone() for buffer in own]
    yield
    with torch.no_grad():
        for buffer, before in zip(own, kept, strict=True):
            buffer.copy_(before)
