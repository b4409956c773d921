"""Several ways to divide a model and its data, each on an axis of one mesh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.placements.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn

    from manyhands.costs import Forecast, TensorSize
    from manyhands.job import Job
    from manyhands.placements.bound import Bound
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


@dataclass(frozen=True, repr=False)
class Hybrid(Placement):
    """Divide data, parameters and layers at once: data × shard × tensor workers.

    The workers stand on a mesh. Along `tensor` they compute parts of the same layers for the same
    samples, as under `tensor()`; along `shard` each holds a part of every parameter, as under
    `fully_sharded()`; along `data` there are copies of all that. Workers that differ in `data` or
    `shard` train on different samples.

    Use it on several hosts: `tensor` within a host, whose workers talk in every layer, `shard`
    between close ones, `data` between far ones, which talk once per step.

    Example: `hybrid(data=2, shard=2, tensor=2)`

    Paper: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM, SC 2021.
    """

    name: ClassVar[str] = "hybrid"
    support: ClassVar[Literal["beta"]] = "beta"

    data: int = 1
    """Copies of the model."""
    shard: int = 1
    """Workers that share the parameters of a copy."""
    tensor: int = 1
    """Workers that share the layers of a copy."""
    plan: tuple[str, ...] = ()
    """Which layers are split along `tensor`, as in `tensor()`; by default they are found."""

    def __post_init__(self) -> None:
        for axis, size in self.axes.items():
            if size < 1:
                raise ValueError(f"{axis} must be at least 1, not {size}")

    @property
    def axes(self) -> dict[str, int]:
        """The mesh."""
        return {"data": self.data, "shard": self.shard, "tensor": self.tensor}

    def check(self, workers: int) -> None:
        """As many workers as the mesh has places."""
        super().check(workers)
        size = self.data * self.shard * self.tensor
        if workers != size:
            fix = f"use {size} workers"
            if workers % (self.shard * self.tensor) == 0:
                fix += f", or data={workers // (self.shard * self.tensor)}"
            raise ValueError(f"{self} is a mesh of {size} workers, not {workers}; {fix}")

    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """Layers split first, then what is left of them sharded."""
        from manyhands.placements.laying import lay_out  # noqa: PLC0415 - torch is lazy
        from manyhands.placements.sharded import Sharded  # noqa: PLC0415
        from manyhands.transport.mesh import Mesh  # noqa: PLC0415

        mesh = Mesh(group, self.axes, waits)

        def spread(model: nn.Module) -> None:
            lay_out(model, mesh, self.plan, str(self))

        bound = Sharded(job, group, device, spread)
        bound.replica = mesh.place["data"] * self.shard + mesh.place["shard"]
        bound.replicas = self.data * self.shard
        bound.speaks = mesh.place["tensor"] == 0
        return bound

    def forecast(self, parameters: Sequence[TensorSize], workers: int) -> Forecast:
        """Needs the layers' inputs as well: see `rehearse`."""
        raise NotImplementedError
