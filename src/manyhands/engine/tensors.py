"""Tensors that lie on several workers: what one of them has, and the whole."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.utils import get_total_norm
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.distributed.device_mesh import DeviceMesh

# It warns that a parameter on two axes is gathered in two collectives, whenever one is gathered.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


def own_part(parameter: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """What this worker has of `whole`, if it is laid out as the parameter is."""
    if not isinstance(parameter, DTensor):
        return whole
    # No source: everybody has the whole tensor here, so nothing needs to be sent.
    laid = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
    return laid.to_local()


def own(parameter: torch.Tensor) -> torch.Tensor:
    """The memory of this worker's part."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """The whole tensor, in the host's memory; all workers that have parts of it must ask."""
    full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
    return full.detach().cpu().contiguous()


@torch.no_grad()
def clip(gradients: Iterable[torch.Tensor], limit: float) -> None:
    """Scale gradients down by one factor if their norm, over the whole model, is above the limit.

    Those that lie on several workers are counted once, whatever mesh they are laid out on.
    """
    by_mesh: dict[object, list[torch.Tensor]] = {}
    for one in gradients:
        by_mesh.setdefault(one.device_mesh if isinstance(one, DTensor) else None, []).append(one)
    norms = [get_total_norm(some) for some in by_mesh.values()]
    known = [one.full_tensor() if isinstance(one, DTensor) else one for one in norms]
    factor = torch.clamp(limit / (torch.stack(known).norm() + 1e-6), max=1.0)
    for some in by_mesh.values():
        for one in some:
            own(one).mul_(factor)


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    return [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]


def memory_of(tensor: torch.Tensor) -> int:
    """What tensors that lie in the same memory have in common, for as long as one of them lives."""
    return int(tensor.untyped_storage()._cdata)


def from_rows(rows: torch.Tensor, like: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """A tensor of the shape of another, of which this worker has these rows, where they are."""
    return DTensor.from_local(
        rows, mesh, [Shard(0)], run_check=False, shape=like.shape, stride=like.stride()
    )
