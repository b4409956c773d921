"""FSDP2: parameters that are gathered only while they are used."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
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
    reduced_as: str | None = None,
) -> None:
    """Shard every parameter over the mesh, unit by unit.

    Args:
        model: the model of the units; its remaining parameters are a unit, too.
        units: in the order in which they are called. A unit's parameters are gathered together.
        mesh: one axis to shard over, or two, of which the first has replicas.
        reshard_after_forward: whether a unit's parameters are freed after the forward and gathered
            again for the backward. The last unit's never are: its backward comes next.
        offload: whether parameters are kept in the host's memory.
        left_alone: parameters that are not sharded, and whose gradients FSDP2 does not reduce.
        reduced_as: name of the dtype in which gradients are reduced; their own by default.
    """
    # A view that is changed in place would lose its hook; FSDP2 warns in any case.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    pinned = torch.cuda.is_available()
    policy = CPUOffloadPolicy(pin_memory=pinned) if offload else OffloadPolicy()
    # FSDP2 gathers a unit's parameters as one flat tensor of one dtype; integers (a counter, the
    # state of a generator) are not trained, so every worker keeps them.
    counters = {one for one in model.parameters() if not one.is_floating_point()}
    alone = {*left_alone} | counters
    options: Any = {"mesh": mesh, "offload_policy": policy, "ignored_params": alone}
    if reduced_as is not None:
        options["mp_policy"] = MixedPrecisionPolicy(reduce_dtype=getattr(torch, reduced_as))
    for unit in units:
        back = reshard_after_forward and unit is not units[-1]
        fully_shard(unit, reshard_after_forward=back, **options)
    if model not in units:
        fully_shard(model, reshard_after_forward=False, **options)


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether it is sharded over an axis `shard`, so that FSDP2 reduces its gradient."""
    return isinstance(tensor, DTensor) and "shard" in (tensor.device_mesh.mesh_dim_names or ())


def reshard(models: Iterable[nn.Module]) -> None:
    """Free the gathered parameters of sharded models, but for the worker's own shards."""
    for model in models:
        if isinstance(model, FSDPModule):
            model.reshard()
