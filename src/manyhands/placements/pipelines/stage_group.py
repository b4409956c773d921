"""Pipelines that stand side by side on a mesh of workers."""

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
    """A pipeline among others, as one of its workers sees them."""

    group: Group
    """Its workers."""
    everybody: Group
    """Those of all pipelines, which are split into the same stages."""
    copies: tuple[Group, ...] = ()
    """Who has the same stages for other samples, axis by axis."""
    replica: int = 0
    replicas: int = 1
    speaks: bool = True
    """Whether it is the first of those that compute the same samples."""
    division: Division | None = None
    """How stages are divided further, if they are."""


def line_on(mesh: Mesh, everybody: Group, find: Callable[[nn.Module], TensorPlan]) -> StageGroup:
    """This worker's pipeline on a mesh of `data`, `pipeline`, `shard` and `tensor`.

    Args:
        mesh: on which it stands.
        everybody: all workers of the mesh.
        find: what of a model is split along `tensor`.
    """
    axes, place = mesh.axes, mesh.place
    return StageGroup(
        group=mesh.groups["pipeline"],
        everybody=everybody,
        copies=tuple(mesh.groups[axis] for axis in ("data", "shard") if axes[axis] > 1),
        replica=place["data"] * axes["shard"] + place["shard"],
        replicas=axes["data"] * axes["shard"],
        speaks=place["tensor"] == 0,
        division=Division(mesh, find),
    )
