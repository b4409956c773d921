"""Tensors that lie on several workers: what one of them has, and the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.tensor import DTensor, Shard, distribute_tensor

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh


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


def from_rows(rows: torch.Tensor, like: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """A tensor of the shape of another, of which this worker has these rows, where they are."""
    return DTensor.from_local(
        rows, mesh, [Shard(0)], run_check=False, shape=like.shape, stride=like.stride()
    )
