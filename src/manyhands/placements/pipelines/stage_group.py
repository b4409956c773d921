"""Stage groups: the pipelines on a mesh of workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.placements.model.mesh_layout import Division

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from manyhands.placements.model.tensor_plan import TensorPlan
    from manyhands.transport.collectives import Group
    from manyhands.transport.mesh import Mesh


@dataclass(frozen=True, eq=False)
class StageGroup:
    """A worker's pipeline, and its position among the pipelines of a mesh."""

    group: Group
    """The workers of the pipeline."""
    all_workers: Group
    """The workers of all pipelines, which are split into the same stages."""
    copies: tuple[Group, ...] = ()
    """For each axis, the workers that have the same stages for other samples."""
    replica: int = 0
    replicas: int = 1
    speaks: bool = True
    """Whether it is the first of the pipelines that compute the same samples."""
    division: Division | None = None
    """Further division of the stages, if any."""


def stage_group_on(
    mesh: Mesh, all_workers: Group, find: Callable[[nn.Module], TensorPlan]
) -> StageGroup:
    """This worker's pipeline on a mesh of `data`, `pipeline`, `shard` and `tensor`.

    Args:
        mesh: the mesh.
        all_workers: all workers of the mesh.
        find: returns the layers of a model that are split along `tensor`.
    """
    axes, place = mesh.axes, mesh.place
    return StageGroup(
        group=mesh.groups["pipeline"],
        all_workers=all_workers,
        copies=tuple(mesh.groups[axis] for axis in ("data", "shard") if axes[axis] > 1),
        replica=place["data"] * axes["shard"] + place["shard"],
        replicas=axes["data"] * axes["shard"],
        speaks=place["tensor"] == 0,
        division=Division(mesh, find),
    )
