"""Device meshes over process groups that Manyhands created.

DTensor and FSDP take a DeviceMesh, which looks up its groups in torch's registry and its rank in
the default group. So while a mesh is in use, our groups are registered there, with the group of all
workers as the default one.
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


def enter(group: ProcessGroup, ranks: Sequence[int], *, default: bool = False) -> None:
    """Register a group of these global ranks with torch, as the default group if `default`.

    Its name depends on the ranks only. torch caches meshes beyond a run and treats those with the
    same ranks as equal; by the name it finds the current group.
    """
    name = GroupName(f"manyhands-{'-'.join(str(rank) for rank in ranks)}")
    group._set_group_name(name)
    places = {rank: place for place, rank in enumerate(ranks)}
    kind = group._get_backend_name()
    c10d._register_pg_in_world(group, kind, None, name, kind, places)  # type: ignore[arg-type]
    # A script under torchrun may have its own default group, with the same ranks.
    if default and not c10d.is_initialized():
        c10d._update_default_pg(group)


def leave(group: ProcessGroup) -> None:
    """Remove a group from torch's registry."""
    if c10d.GroupMember.WORLD is group:
        c10d._update_default_pg(None)
    c10d._cleanup_process_group_global_state(group)


def device_mesh(
    device: str, axes: Mapping[str, int], groups: Mapping[str, ProcessGroup]
) -> DeviceMesh:
    """A mesh of all workers, the last axis varying fastest, over registered groups."""
    names = tuple(axes)
    # A mesh needs real tensors, even in a dry run.
    with really():
        if len(names) == 1:
            return DeviceMesh.from_group(groups[names[0]], device, mesh_dim_names=names)
        grid = torch.arange(torch.Size(axes.values()).numel()).view(*axes.values())
        return DeviceMesh.from_group(
            [groups[name] for name in names], device, grid, mesh_dim_names=names
        )
