"""Tensors that lie on several workers: what one of them has, and the whole."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.utils import get_total_norm
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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


def laid_out(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The tensor of which this is the worker's part, if it is laid out as another is."""
    if not isinstance(like, DTensor):
        return part
    return DTensor.from_local(
        part,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def gradient_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """Its gradient, laid out as it is; an embedding's is whole when it comes out of the engine."""
    grad = parameter.grad
    if not isinstance(parameter, DTensor) or not isinstance(grad, DTensor):
        return grad
    if grad.placements != parameter.placements:
        parameter.grad = grad = grad.redistribute(placements=parameter.placements)
    return grad


def gathered(parameter: torch.Tensor) -> torch.Tensor:
    """The whole tensor, where its parts are; all workers that have some must ask."""
    full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
    return full.detach().contiguous()


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """The same in the host's memory."""
    return gathered(parameter).cpu()


@torch.no_grad()
def norm(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """Their norm; what lies on several workers counts once, whatever its mesh."""
    by_mesh: dict[object, list[torch.Tensor]] = {}
    for one in gradients:
        by_mesh.setdefault(one.device_mesh if isinstance(one, DTensor) else None, []).append(one)
    norms = [get_total_norm(some) for some in by_mesh.values()]
    known = [one.full_tensor() if isinstance(one, DTensor) else one for one in norms]
    return torch.stack(known).norm() if known else torch.zeros(())


@torch.no_grad()
def clip(gradients: Sequence[torch.Tensor], limit: float) -> None:
    """Scale them down by one factor if their norm, over the whole model, is above the limit."""
    factor = torch.clamp(limit / (norm(gradients) + 1e-6), max=1.0)
    for one in gradients:
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
