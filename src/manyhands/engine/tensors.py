"""DTensors: local parts, gathered tensors, norms and clipping."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.utils import get_total_norm
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.distributed.device_mesh import DeviceMesh

# DTensor warns, at every gather, that a parameter on two axes is gathered in two collectives.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


def own_part(parameter: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """This worker's part of `whole`, with the parameter's layout."""
    if not isinstance(parameter, DTensor):
        return whole
    # No source: every worker has the whole tensor here, so nothing needs to be sent.
    laid = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
    return laid.to_local()


def laid_as(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor that every worker has, laid out as another one is."""
    if not isinstance(like, DTensor):
        return whole
    whole = whole.to(like.device)
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def own(parameter: torch.Tensor) -> torch.Tensor:
    """This worker's local part, sharing its memory."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def box(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Where this worker's part begins in the whole tensor; None if the part is not one box."""
    if not isinstance(tensor, DTensor):
        return (0,) * tensor.dim()
    sizes = tensor.device_mesh.shape
    # On an axis of one worker nothing is divided, whatever the layout says.
    layout = [
        Replicate() if size == 1 else one
        for size, one in zip(sizes, tensor.placements, strict=True)
    ]
    if not all(isinstance(one, (Shard, Replicate)) for one in layout):
        return None
    _, begin = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, layout)
    return tuple(begin)


def is_first_copy(tensor: torch.Tensor) -> bool:
    """Whether this worker is the first of those that have the same part of a DTensor."""
    if not isinstance(tensor, DTensor):
        return True
    place = tensor.device_mesh.get_coordinate()
    return place is not None and all(
        at == 0
        for at, one in zip(place, tensor.placements, strict=True)
        if isinstance(one, Replicate)
    )


def is_divided(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a DTensor, of which other workers may have other parts."""
    return isinstance(tensor, DTensor)


def as_dtensor(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The DTensor with this local part and the layout of `like`."""
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
    """The parameter's gradient, in its layout; autograd leaves an embedding's unsharded."""
    grad = parameter.grad
    if not isinstance(parameter, DTensor) or not isinstance(grad, DTensor):
        return grad
    if grad.placements != parameter.placements:
        parameter.grad = grad = grad.redistribute(placements=parameter.placements)
    return grad


def gathered(parameter: torch.Tensor) -> torch.Tensor:
    """The whole tensor, on the same device; a collective of all workers that hold parts."""
    full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
    return full.detach().contiguous()


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """As `gathered`, in the host's memory."""
    return gathered(parameter).cpu()


@torch.no_grad()
def norm(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """The joint norm; a tensor on several workers counts once."""
    by_mesh: dict[object, list[torch.Tensor]] = {}
    for one in gradients:
        by_mesh.setdefault(one.device_mesh if isinstance(one, DTensor) else None, []).append(one)
    norms = [get_total_norm(some) for some in by_mesh.values()]
    known = [one.full_tensor() if isinstance(one, DTensor) else one for one in norms]
    return torch.stack(known).norm() if known else torch.zeros(())


@torch.no_grad()
def clip(gradients: Sequence[torch.Tensor], limit: float) -> None:
    """Clip the joint norm of the gradients, over the whole model, to the limit."""
    factor = torch.clamp(limit / (norm(gradients) + 1e-6), max=1.0)
    for one in gradients:
        own(one).mul_(factor)


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    return [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]


def memory_of(tensor: torch.Tensor) -> int:
    """A key that tensors in the same storage have in common, while one of them is alive."""
    return int(tensor.untyped_storage()._cdata)


def from_rows(rows: torch.Tensor, like: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """A DTensor with the shape of `like`, of which this worker has these rows."""
    return DTensor.from_local(
        rows, mesh, [Shard(0)], run_check=False, shape=like.shape, stride=like.stride()
    )
