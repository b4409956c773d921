"""Tensors that lie on several workers: what one of them has, and the whole."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor, distribute_tensor


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


def norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """The Euclidean norm of all gradients together, wherever they lie."""
    total = torch.nn.utils.get_total_norm(gradients)
    return total.full_tensor() if isinstance(total, DTensor) else total
