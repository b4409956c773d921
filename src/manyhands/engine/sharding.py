"""FSDP2: parameters that are whole only while they are used."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


def shard(
    model: nn.Module,
    units: Sequence[nn.Module],
    mesh: DeviceMesh,
    *,
    give_back: bool,
    offload: bool = False,
) -> None:
    """Spread every parameter over the mesh, unit by unit.

    Args:
        model: what the units are in; parameters of its own are a unit, too.
        units: in the order in which they are called. A unit's parameters are gathered together.
        mesh: one axis to spread over, or two, of which the first has copies.
        give_back: whether a unit is given back after the forward and gathered again for the
            backward. The last one never is: its backward comes next.
        offload: whether parameters lie in the host's memory.
    """
    # A view that is changed in place would lose its hook; it says so whether it is changed or not.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    pinned = torch.cuda.is_available()
    policy = CPUOffloadPolicy(pin_memory=pinned) if offload else OffloadPolicy()
    for unit in units:
        back = give_back and unit is not units[-1]
        fully_shard(unit, mesh=mesh, reshard_after_forward=back, offload_policy=policy)
    if model not in units:
        fully_shard(model, mesh=mesh, reshard_after_forward=False, offload_policy=policy)
