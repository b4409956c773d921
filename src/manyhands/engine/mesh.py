"""Device meshes over groups that Manyhands made.

DTensor, FSDP and the like take a DeviceMesh, and that finds its groups in torch's registry and its
own rank in the default group. So while a mesh is in use the groups are entered there, the one of
all workers as the default group: it is still ours, sockets included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import GroupName

from manyhands.engine.fake_tensors import really

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch._C._distributed_c10d import ProcessGroup


def enter(group: ProcessGroup, ranks: Sequence[int], *, everybody: bool = False) -> None:
    """Put a group of these global ranks into torch's registry; as the default one, if asked to.

    Its name tells the ranks and nothing else. torch keeps meshes in its caches beyond a run, and
    takes one with the same ranks for the same; by the name it finds the group of the day.
    """
    name = GroupName(f"manyhands-{'-'.join(str(rank) for rank in ranks)}")
    group._set_group_name(name)
    places = {rank: place for place, rank in enumerate(ranks)}
    kind = group._get_backend_name()
    c10d._register_pg_in_world(group, kind, None, name, kind, places)  # type: ignore[arg-type]
    # A script under torchrun may have a default group of its own, with the same ranks.
    if everybody and not c10d.is_initialized():
        c10d._update_default_pg(group)


def leave(group: ProcessGroup) -> None:
    """Take a group out of torch's registry again."""
    if c10d.GroupMember.WORLD is group:
        c10d._update_default_pg(None)
    c10d._cleanup_process_group_global_state(group)


def device_mesh(
    device: str, axes: Mapping[str, int], groups: Mapping[str, ProcessGroup]
) -> DeviceMesh:
    """All workers as a grid, the last axis varying fastest, over groups that were entered."""
    names = tuple(axes)
    # A mesh is made of numbers that are really there, even if all else is imagined.
    with really():
        if len(names) == 1:
            return DeviceMesh.from_group(groups[names[0]], device, mesh_dim_names=names)
        grid = torch.arange(torch.Size(axes.values()).numel()).view(*axes.values())
        return DeviceMesh.from_group(
            [groups[name] for name in names], device, grid, mesh_dim_names=names
        )
