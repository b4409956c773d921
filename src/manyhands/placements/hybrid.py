"""Several ways to divide a model and its data, each on an axis of one mesh."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.costs import Collective, Forecast
from manyhands.notation import Value  # noqa: TC001 - a field's type is needed when it is read
from manyhands.placements.forecasts.periodic_sync import check_between, with_meetings
from manyhands.placements.forecasts.pipeline_mesh import forecast_lines, lines_forecast
from manyhands.placements.forecasts.tensor_parallel import part_of, split_collectives
from manyhands.placements.fully_sharded import sharded_forecast
from manyhands.placements.pipeline import Pipeline
from manyhands.placements.placement import Placement, check_layers
from manyhands.schedules import Name  # noqa: TC001 - as above

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import nn

    from manyhands.costs import LayerSize, TensorSize
    from manyhands.job import Job
    from manyhands.placements.bound import Bound
    from manyhands.placements.model.tensor_plan import TensorPlan
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


@dataclass(frozen=True, repr=False)
class Hybrid(Placement):
    """Divide data, parameters and layers at once, each on an axis of a mesh of workers.

    The workers stand on a mesh. Along `tensor` they compute parts of the same layers for the same
    samples, as under `tensor()`; along `shard` each holds a part of every parameter, as under
    `fully_sharded()`; along `pipeline` they have different layers, as under `pipeline()`; along
    `data` there are copies of all that. Workers that differ in `data` or `shard` train on different
    samples; of those that share a pipeline, each hands on to the one at its own place.

    Use it on several hosts: `tensor` within a host, whose workers talk in every layer, `shard`
    between close ones, `pipeline` between far ones, which hand on one tensor per microbatch, and
    `data` between the farthest, which talk once per step; or, with `outer`, once in many steps.

    Others are `hybrid(data=2, tensor=2, pipeline=2)` and
    `hybrid(data=2, shard=2, outer=diloco(every=50))`.

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
    pipeline: int = 1
    """Workers that have different layers of a copy, as in `pipeline()`."""
    microbatches: int = 8
    """Into how many a copy's share of a batch is split, if there is a pipeline."""
    schedule: Name = "one_f_one_b"
    """The pipeline's, as in `pipeline()`; not pipedream."""
    split_points: tuple[str, ...] = ()
    """The layers at which stages begin, as in `pipeline()`; by default they are measured."""
    outer: Value | None = None
    """How the replicas along `data` synchronise every H steps: averaging, local_sgd or diloco. By
    default they sum their gradients in every step."""
    together: int = 1
    """With `outer`: workers, or meshes of them, of which one replica consists, in lockstep."""

    def __post_init__(self) -> None:
        for axis, size in (*self.axes.items(), ("together", self.together)):
            if size < 1:
                raise ValueError(f"{axis} must be at least 1, not {size}")
        if self.pipeline > 1 and self.schedule == "pipedream":
            raise ValueError(
                "copies of a pipeline share the gradient of a batch, which pipedream never has; "
                "take another schedule, or pipeline(schedule=pipedream) alone"
            )
        if self.outer is not None:
            check_between(self.outer)
        elif self.together > 1:
            raise ValueError(
                "without between all copies step together: "
                f"leave out together, and take data={self.data * self.together}"
            )

    @property
    def axes(self) -> dict[str, int]:
        """The mesh."""
        return {
            "data": self.data,
            "pipeline": self.pipeline,
            "shard": self.shard,
            "tensor": self.tensor,
        }

    @property
    def line(self) -> Pipeline:
        """One copy, if it is a pipeline."""
        return Pipeline(
            microbatches=self.microbatches, schedule=self.schedule, split_points=self.split_points
        )

    def find(self, model: nn.Module) -> TensorPlan:
        """What of a model is split along `tensor`."""
        from manyhands.placements.model.mesh_layout import plan_of  # noqa: PLC0415 - torch is lazy

        return plan_of(model, self.tensor, self.plan, str(self))

    @property
    def _copy_or_all(self) -> int:
        """Workers, or meshes of them, that step together."""
        return self.data if self.outer is None else self.together

    @property
    def _copy(self) -> Hybrid:
        """One of those that step apart."""
        return replace(self, data=self.together, together=1, outer=None)

    def check(self, workers: int) -> None:
        """As many workers as the mesh has places."""
        super().check(workers)
        copy = self.together * self.shard * self.tensor * self.pipeline
        size = self.data * copy
        if workers != size:
            fix = f"use {size} workers"
            if workers % copy == 0:
                fix += f", or data={workers // copy}"
            raise ValueError(f"{self} is a mesh of {size} workers, not {workers}; {fix}")
        if self.pipeline > 1:
            self.line.check(self.pipeline)

    def check_job(self, job: Job, workers: int) -> None:  # noqa: ARG002 - the contract
        """Something must be there to split along `tensor`, and layers for a pipeline's stages."""
        from manyhands.placements.model.fsdp_support import check_shardable  # noqa: PLC0415 - torch is lazy

        check_split(job, self.find)
        shared = self.shard if self.pipeline > 1 else self._copy_or_all * self.shard
        if shared > 1:
            check_shardable(self, job)
        if self.pipeline > 1:
            self.line.check_job(job, self.pipeline, self.find)

    def unlike(self, workers: int) -> Sequence[int]:  # noqa: ARG002 - the mesh says it
        """Those of one pipeline."""
        within = self.shard * self.tensor
        return range(0, self.pipeline * within, within)

    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """Layers split first, then what is left of them sharded; stage by stage in a pipeline."""
        if self.outer is not None:
            from manyhands.placements.worker.periodic_sync import bind_apart  # noqa: PLC0415 - torch is lazy

            meeting = check_between(self.outer)
            return bind_apart(self._copy, meeting, self.data, job, group, device, waits)
        from manyhands.placements.model.mesh_layout import lay_out  # noqa: PLC0415 - torch is lazy
        from manyhands.placements.pipelines.stage_group import line_on  # noqa: PLC0415
        from manyhands.placements.worker.sharded import Sharded  # noqa: PLC0415
        from manyhands.transport.mesh import Mesh  # noqa: PLC0415

        absent = "pipeline" if self.pipeline == 1 else ""
        axes = {axis: size for axis, size in self.axes.items() if axis != absent}
        mesh = Mesh(group, axes, waits)
        if self.pipeline > 1:
            return self.line.bind_line(job, line_on(mesh, group.whole, self.find), device, waits)
        words: list[str] = []

        def spread(model: nn.Module) -> None:
            plan = self.find(model)
            words[:] = plan.words
            lay_out(model, mesh, plan)

        bound = Sharded(job, group, device, spread)
        bound.words = tuple(words)
        bound.replica = mesh.place["data"] * self.shard + mesh.place["shard"]
        bound.replicas = self.data * self.shard
        bound.speaks = mesh.place["tensor"] == 0
        return bound

    def forecast(
        self, parameters: Sequence[TensorSize], workers: int, layers: Sequence[LayerSize] = ()
    ) -> Forecast:
        """What sharding does with the parts of the parameters, and what split layers exchange.

        The two lists stand one after the other; in a step they are interleaved. In a pipeline a
        parameter's `unit` is the number of its stage, and `layers` has the stages' calls as well.
        """
        self.check(workers)
        if self.outer is not None:
            self._check_meetings()
            size = workers // self.data
            roles = {layer.name: layer.role for layer in layers}
            parts = [part_of(one, roles, self.tensor, 0) for one in parameters if one.trained]
            trained = sum(one.padded(self.shard) // self.shard for one in parts)
            copy = self._copy.forecast(parameters, size, layers)
            return with_meetings(copy, check_between(self.outer), self.data, size, trained)
        if self.tensor > 1:
            check_layers(self, layers, "column", "row", "logits", "table")
        if self.pipeline > 1:
            check_layers(self, layers, "stage")
            return lines_forecast(self.axes, self.line, parameters, layers)
        split = split_collectives(layers, self.tensor) if self.tensor > 1 else []
        roles = {layer.name: layer.role for layer in layers}
        by_place = [
            self._sharded([part_of(one, roles, self.tensor, place) for one in parameters], split)
            for place in range(self.tensor)
        ]
        if all(one.step == by_place[0].step for one in by_place):
            return by_place[0]
        # Some have a row more than others.
        by_worker = tuple(by_place[rank % self.tensor].step for rank in range(workers))
        return replace(by_place[0], by_worker=by_worker)

    def _check_meetings(self) -> None:
        if self.outer is not None and self.pipeline > 1:
            raise ValueError(
                f"what {self} sends when it meets depends on its stages: forecast one copy, "
                f"{self._copy}, and add the mean of its parameters"
            )

    def _sharded(self, parameters: Sequence[TensorSize], split: Sequence[Collective]) -> Forecast:
        """What a worker does that has these parts of the parameters."""
        if self.data * self.shard == 1:
            own = sum(one.size for one in parameters)
            return Forecast(start=(), step=tuple(split), memory=2 * own)
        sharded = sharded_forecast(parameters, self.shard, reshard_after_forward=True)
        step: list[Collective] = []
        for one in sharded.step:
            step.append(replace(one, workers=self.shard))
            if one.kind == "reduce_scatter" and self.data > 1:
                step.append(Collective("allreduce", one.size // self.shard, self.data))
        if self.shard == 1:
            step = [one for one in step if one.workers != 1]
        return Forecast(start=(), step=(*split, *step), memory=sharded.memory)

    def forecast_job(self, job: Job, workers: int) -> Forecast:
        """Layers that are split are found, and what goes through them looked at."""
        if self.pipeline > 1:
            self.check(workers)
            self._check_meetings()
            return forecast_lines(self.axes, self.line, job, self.find)
        from manyhands.placements.forecasts.layer_sizes import (  # noqa: PLC0415 - torch is lazy
            sizes_and_layers,
            tensor_roles,
        )

        roles = tensor_roles(job.model, self.find)
        parameters, layers = sizes_and_layers(job, self.data * self.together * self.shard, roles)
        return self.forecast(parameters, workers, layers)


def check_split(job: Job, find: Callable[[nn.Module], TensorPlan]) -> None:
    """Raise unless there is something to split.

    Not every model can be made without its numbers; what cannot is looked at when it is made.
    """
    from manyhands.parameters.initial.deferred import on_meta  # noqa: PLC0415 - torch is lazy

    try:
        model = on_meta(job.model)
    except Exception:  # noqa: BLE001 - see above
        return
    find(model)
