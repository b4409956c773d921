"""FSDP2: parameters that are whole only while they are used."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


def shard(
    model: nn.Module,
    units: Sequence[nn.Module],
    mesh: DeviceMesh,
    *,
    reshard_after_forward: bool,
    offload: bool = False,
    left_alone: Collection[nn.Parameter] = (),
) -> None:
    """Spread every parameter over the mesh, unit by unit.

    Args:
        model: what the units are in; parameters of its own are a unit, too.
        units: in the order in which they are called. A unit's parameters are gathered together.
        mesh: one axis to spread over, or two, of which the first has copies.
        reshard_after_forward: whether a unit's parameters are freed after the forward and gathered
            again for the backward. The last unit's never are: its backward comes next.
        offload: whether parameters lie in the host's memory.
        left_alone: parameters that stay whole, and whose gradients are another's business.
    """
    # A view that is changed in place would lose its hook; it says so whether it is changed or not.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    pinned = torch.cuda.is_available()
    policy = CPUOffloadPolicy(pin_memory=pinned) if offload else OffloadPolicy()
    # The engine gathers a unit's parameters as one stretch of one type; whole numbers (a counter,
    # the state of a generator) are not trained, so every worker may have them.
    counters = {one for one in model.parameters() if not one.is_floating_point()}
    alone = {*left_alone} | counters
    options: Any = {"mesh": mesh, "offload_policy": policy, "ignored_params": alone}
    for unit in units:
        back = reshard_after_forward and unit is not units[-1]
        fully_shard(unit, reshard_after_forward=back, **options)
    if model not in units:
        fully_shard(model, reshard_after_forward=False, **options)


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether it is spread over an axis `shard`, so that the engine reduces its gradient."""
    return isinstance(tensor, DTensor) and "shard" in (tensor.device_mesh.mesh_dim_names or ())


def give_back(models: Iterable[nn.Module]) -> None:
    """Let go of all but the own shards of what was gathered, if these are sharded."""
    for model in models:
        if isinstance(model, FSDPModule):
            model.reshard()
