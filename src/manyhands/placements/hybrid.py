"""Several kinds of parallelism at once, each on an axis of one device mesh."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from manyhands.codecs import Codec  # noqa: TC001 - a field's type is needed when it is read
from manyhands.codecs.reducers import Reducer  # noqa: TC001 - as above
from manyhands.collectives import (
    FORWARD,
    BeginCollective,
    StepProgram,
    evenly,
    instructions,
    moved,
    waiting,
)
from manyhands.costs import PLAIN, Collective, Forecast
from manyhands.notation import Value  # noqa: TC001 - as above
from manyhands.placements.compression.reduce_dtype import check_reduce_dtype, reduce_dtype
from manyhands.placements.forecasts.mesh_program import program_stage_groups
from manyhands.placements.forecasts.periodic_sync import check_outer, with_synchronisations
from manyhands.placements.forecasts.pipeline_mesh import (
    forecast_stage_groups,
    stage_groups_forecast,
)
from manyhands.placements.forecasts.tensor_parallel import part_of, split_collectives
from manyhands.placements.fully_sharded import sharded_forecast, sharded_times
from manyhands.placements.pipeline import Pipeline
from manyhands.placements.placement import Placement, check_layers, refuse_codec
from manyhands.schedules import Name  # noqa: TC001 - as above

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import nn

    from manyhands.collectives import Instruction
    from manyhands.costs import CodingSpeeds, ComputeConditions, LayerSize, TensorSize
    from manyhands.job import Job
    from manyhands.placements.bound import Bound
    from manyhands.placements.model.tensor_plan import TensorPlan
    from manyhands.runtime_needs import Option
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


@dataclass(frozen=True, repr=False)
class Hybrid(Placement):
    """Divide data, parameters and layers at once, each on an axis of a mesh of workers.

    Along `tensor`, workers compute parts of the same layers for the same samples, as in `tensor()`.
    Along `shard`, each worker holds a shard of every parameter, as in `fully_sharded()`. Along
    `pipeline`, workers have different layers, as in `pipeline()`. Along `data` there are replicas
    of all that. Workers that differ in `data` or `shard` train on different samples. Along
    `pipeline`, a worker sends to the one with the same coordinates on the other axes.

    Use it on several hosts: `tensor` within a host, where workers communicate in every layer;
    `shard` between hosts on fast links; `pipeline` on slower links, with one tensor per
    microbatch; and `data` on the slowest, with one exchange per step or, with `outer`, once in
    many steps.

    Other examples: `hybrid(data=2, tensor=2, pipeline=2)` and
    `hybrid(data=2, shard=2, outer=diloco(every=50))`.

    Example: `hybrid(data=2, shard=2, tensor=2)`

    Paper: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM, SC 2021.
    """

    name: ClassVar[str] = "hybrid"
    support: ClassVar[Literal["beta"]] = "beta"
    binds_again: ClassVar[bool] = True

    data: int = 1
    """Number of replicas of the model."""
    shard: int = 1
    """Workers that shard the parameters of a replica."""
    tensor: int = 1
    """Workers that split the layers of a replica."""
    plan: tuple[str, ...] = ()
    """Which layers are split along `tensor`, as in `tensor()`; by default they are found."""
    pipeline: int = 1
    """Workers that have different layers of a replica, as in `pipeline()`."""
    microbatches: int = 8
    """Number of microbatches of a replica's share of a batch, if there is a pipeline."""
    schedule: Name | str = "one_f_one_b"
    """Schedule of the pipeline, as in `pipeline()`; not pipedream."""
    split_points: tuple[str, ...] = ()
    """The layers at which stages begin, as in `pipeline()`; by default they are balanced by
    measurement."""
    outer: Value | None = None
    """How the replicas along `data` synchronise every H steps: averaging, local_sgd or diloco. By
    default they sum their gradients in every step."""
    together: int = 1
    """With `outer`: workers, or meshes of them, of which one replica consists, in lockstep."""
    codec: Codec | Reducer | None = None
    """The dtype in which gradients are reduced in every step along `shard` and `data`: half or
    bfloat16, without error feedback. By default their own."""

    def __post_init__(self) -> None:
        for axis, size in (*self.axes.items(), ("together", self.together)):
            if size < 1:
                raise ValueError(f"{axis} must be at least 1, got {size}")
        if self.pipeline > 1 and self.schedule == "pipedream":
            raise ValueError(
                "schedule=pipedream updates after every microbatch, and replicas of a pipeline "
                "average the gradient of a whole batch: use another schedule, or "
                "pipeline(schedule=pipedream)"
            )
        self._check_codec()
        self._check_axes()
        if self.outer is not None:
            check_outer(self.outer)
        elif self.together > 1:
            raise ValueError(
                f"together={self.together} needs outer=…: without it all replicas step together; "
                f"leave out together, and use data={self.data * self.together}"
            )

    def _check_axes(self) -> None:
        """Refuse options of an axis that the mesh does not have."""
        plain = Pipeline()
        of_pipeline = {
            "microbatches": (self.microbatches, plain.microbatches),
            "schedule": (self.schedule, plain.schedule),
            "split_points": (self.split_points, plain.split_points),
        }
        for name, (given, usual) in of_pipeline.items():
            if self.pipeline == 1 and given != usual:
                raise ValueError(
                    f"{name}={_words(given)} is of a pipeline, and pipeline=1 makes none: leave "
                    "it out, or use pipeline=2 or more"
                )
        if self.tensor == 1 and self.plan:
            raise ValueError(
                f"plan={_words(self.plan)} says which layers are split along tensor, and tensor=1 "
                "splits none: leave it out, or use tensor=2 or more"
            )

    def _check_codec(self) -> None:
        check_reduce_dtype(self.codec, self.name)
        if self.codec is None:
            return
        if self.pipeline > 1:
            raise ValueError(
                f"a pipeline's stages sum their gradients as they are: leave out codec={self.codec}"
            )
        if self._copy_or_all * self.shard == 1:
            raise ValueError(
                f"codec={self.codec} has nothing to reduce in every step along data or shard: "
                "leave it out, or use shard=2 or more"
            )

    @property
    def axes(self) -> dict[str, int]:
        """The axes of the mesh, with their lengths."""
        return {
            "data": self.data,
            "pipeline": self.pipeline,
            "shard": self.shard,
            "tensor": self.tensor,
        }

    @property
    def one_pipeline(self) -> Pipeline:
        """The pipeline of one replica."""
        return Pipeline(
            microbatches=self.microbatches, schedule=self.schedule, split_points=self.split_points
        )

    def find(self, model: nn.Module) -> TensorPlan:
        """The layers of a model that are split along `tensor`."""
        from manyhands.placements.model.mesh_layout import plan_of  # noqa: PLC0415 - torch is lazy

        return plan_of(model, self.tensor, self.plan, str(self))

    @property
    def _copy_or_all(self) -> int:
        """Length of the `data` axis within which replicas step together."""
        return self.data if self.outer is None else self.together

    @property
    def _copy(self) -> Hybrid:
        """The strategy of one group of replicas that steps independently."""
        return replace(self, data=self.together, together=1, outer=None)

    def obstacle(self, option: Option) -> str:
        """As in `Placement`; replicas with an outer step differ between its steps."""
        if self.outer is not None and option in ("ema", "float16"):
            return (
                f"its replicas step by themselves until {self.outer} joins them: leave it out, or "
                "leave out outer"
            )
        return super().obstacle(option)

    def calling_alike(self, workers: int) -> int:
        """A call gathers parameters along `shard`; the workers along `tensor` have one part."""
        parts = workers // (self.tensor * self.pipeline)
        return parts if self.shard > 1 or self.outer is None else 0

    def check(self, workers: int) -> None:
        """Raise ValueError unless there are as many workers as the mesh has coordinates."""
        super().check(workers)
        copy = self.together * self.shard * self.tensor * self.pipeline
        size = self.data * copy
        if workers != size:
            fix = f"use {size} workers"
            if workers % copy == 0:
                fix += f", or data={workers // copy}"
            raise ValueError(f"{self} is a mesh of {size} workers, got {workers}: {fix}")
        if self.pipeline > 1:
            self.one_pipeline.check(self.pipeline)
        if self.outer is not None:
            check_outer(self.outer).check(self.data)

    def check_job(self, job: Job, workers: int) -> None:
        """Raise ValueError if there is nothing to split along `tensor`, or too few layers."""
        from manyhands.placements.model.fsdp_support import check_shardable  # noqa: PLC0415 - torch is lazy

        super().check_job(job, workers)
        check_split(job, self.find)
        shared = self.shard if self.pipeline > 1 else self._copy_or_all * self.shard
        if shared > 1:
            check_shardable(self, job)
        if self.pipeline > 1:
            self.one_pipeline.check_job(job, self.pipeline, self.find)

    def distinct_ranks(self, workers: int) -> Sequence[int]:  # noqa: ARG002 - the mesh says it
        """The ranks of one pipeline."""
        within = self.shard * self.tensor
        return range(0, self.pipeline * within, within)

    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """Split layers along `tensor` first, then shard them; stage by stage in a pipeline."""
        if self.outer is not None:
            from manyhands.placements.worker.periodic_sync import bind_periodic_sync  # noqa: PLC0415 - torch is lazy

            outer = check_outer(self.outer)
            return bind_periodic_sync(self._copy, outer, self.data, job, group, device, waits)
        from manyhands.placements.model.mesh_layout import distribute  # noqa: PLC0415 - torch is lazy
        from manyhands.placements.pipelines.stage_group import stage_group_on  # noqa: PLC0415
        from manyhands.placements.worker.sharded import Sharded  # noqa: PLC0415
        from manyhands.transport.mesh import Mesh  # noqa: PLC0415

        absent = "pipeline" if self.pipeline == 1 else ""
        axes = {axis: size for axis, size in self.axes.items() if axis != absent}
        mesh = Mesh(group, axes, waits, shares_memory=self.pipeline == 1)
        if self.pipeline > 1:
            return self.one_pipeline.bind_stage_group(
                job, stage_group_on(mesh, group.whole, self.find), device, waits
            )
        words: list[str] = []

        def spread(model: nn.Module) -> None:
            plan = self.find(model)
            words[:] = plan.words
            distribute(model, mesh, plan, reduced_as=reduce_dtype(self.codec))

        bound = Sharded(job, group, device, spread)
        bound.words = (*words, *mesh.words)
        bound.replica = mesh.place["data"] * self.shard + mesh.place["shard"]
        bound.replicas = self.data * self.shard
        bound.speaks = mesh.place["tensor"] == 0
        return bound

    @property
    def row(self) -> int:
        """The workers of one replica."""
        return self.pipeline * self.shard * self.tensor

    def rigidity(self, job: Job) -> str:
        """Other replicas continue without one; some options do not go with another group."""
        if self.data == 1:
            return super().rigidity(job)
        reasons = {
            f"its replicas differ until {self.outer} joins them": self.outer is not None,
            "shard and tensor divide the same parameters, which one worker cannot hand over": (
                self.shard > 1 and self.tensor > 1
            ),
            f"{self.codec} has nothing to reduce in a single replica": (
                self.codec is not None and self.shard == 1
            ),
            "a batch gives several steps, and an interrupted one cannot be repeated": bool(
                job.objective_names
            ),
            "a stream is read by each worker, and cannot be divided again": job.streams,
            "a step whose gradient overflows is not taken, and its end is not agreed on": (
                job.autocast == "float16"
            ),
        }
        return next((words for words, holds in reasons.items() if holds), "")

    def with_replicas(self, count: int) -> Hybrid:
        """The same strategy with another number of replicas."""
        return replace(self, data=count)

    def shared_bytes(self, job: Job, workers: int) -> int:  # noqa: ARG002 - the contract
        """As in `Placement`: chunks of what is exchanged, or what pipelines send."""
        from manyhands.transport.shared.layout import mesh_room  # noqa: PLC0415 - torch is lazy
        from manyhands.transport.shared.posts import pipeline_room  # noqa: PLC0415

        if self.pipeline > 1:
            return pipeline_room(self.pipeline) * (workers // self.pipeline)
        axes = self.axes.values() if self.outer is None else (self.shard, self.tensor)
        return mesh_room(axes) * (self.data if self.outer else 1)

    def forecast(
        self, parameters: Sequence[TensorSize], workers: int, layers: Sequence[LayerSize] = ()
    ) -> Forecast:
        """The collectives of sharding, then those of split layers.

        The two lists follow each other; in a real step they are interleaved. In a pipeline a
        parameter's `unit` is the number of its stage, and `layers` has the stages' calls as well.
        """
        self.check(workers)
        if self.outer is not None:
            self._check_forecastable()
            size, trained = workers // self.data, self._trained(parameters, layers)
            copy = self._copy.forecast(parameters, size, layers)
            return with_synchronisations(copy, check_outer(self.outer), self.data, size, trained)
        if self.tensor > 1:
            check_layers(self, layers, "column", "row", "logits", "table")
        if self.pipeline > 1:
            check_layers(self, layers, "stage")
            return stage_groups_forecast(self.axes, self.one_pipeline, parameters, layers)
        split = split_collectives(layers, self.tensor) if self.tensor > 1 else []
        roles = {layer.name: layer.role for layer in layers}
        by_place = [
            self._sharded([part_of(one, roles, self.tensor, place) for one in parameters], split)
            for place in range(self.tensor)
        ]
        if all(one.step == by_place[0].step for one in by_place):
            return by_place[0]
        # Some workers have a row more than others.
        by_worker = tuple(by_place[rank % self.tensor].step for rank in range(workers))
        return replace(by_place[0], by_worker=by_worker)

    def _check_forecastable(self) -> None:
        if self.outer is not None and self.pipeline > 1:
            raise ValueError(
                f"the outer synchronisation of {self} depends on its stages and is not forecast: "
                f"forecast one replica, {self._copy}, and add an allreduce of its parameters"
            )

    def _sharded(self, parameters: Sequence[TensorSize], split: Sequence[Collective]) -> Forecast:
        """The forecast of a worker that has these parts of the parameters."""
        if self.data * self.shard == 1:
            own = sum(one.size for one in parameters)
            return Forecast(start=(), step=tuple(split), memory=2 * own)
        sharded = sharded_forecast(
            parameters, self.shard, reshard_after_forward=True, codec=self.codec
        )
        step: list[Collective] = []
        for one in sharded.step:
            step.append(replace(one, workers=self.shard))
            if one.kind == "reduce_scatter" and self.data > 1:
                step.append(Collective("allreduce", one.size // self.shard, self.data))
        if self.shard == 1:
            step = [one for one in step if one.workers != 1]
        return Forecast(start=(), step=(*split, *step), memory=sharded.memory)

    def _trained(self, parameters: Sequence[TensorSize], layers: Sequence[LayerSize]) -> int:
        """Bytes of trained parameters on the first worker of a replica."""
        roles = {layer.name: layer.role for layer in layers}
        parts = [part_of(one, roles, self.tensor, 0) for one in parameters if one.trained]
        return sum(one.padded(self.shard) // self.shard for one in parts)

    def forecast_job(self, job: Job, workers: int) -> Forecast:
        """As `forecast`, with split layers and their sizes found on the meta device."""
        if self.pipeline > 1:
            self.check(workers)
            self._check_forecastable()
            return forecast_stage_groups(self.axes, self.one_pipeline, job, self.find)
        from manyhands.placements.forecasts.layer_sizes import (  # noqa: PLC0415 - torch is lazy
            sizes_and_layers,
            tensor_roles,
        )

        roles = tensor_roles(job.model, self.find)
        parameters, layers = sizes_and_layers(job, self.data * self.together * self.shard, roles)
        return self.forecast(parameters, workers, layers)

    def with_interval(self, every: int) -> Placement:
        """The same strategy, whose replicas synchronise every so many steps."""
        if self.outer is None:
            return super().with_interval(every)
        outer: Any = check_outer(self.outer)
        return replace(self, outer=replace(outer, every=every))

    def check_virtual(self, *, numbers: bool = True) -> None:
        """Raise ValueError for options whose numbers or times are not simulated."""
        refuse_codec(self, self.codec)
        if self.outer is not None and numbers:
            raise ValueError(
                f"replicas that synchronise by {self.outer} differ from one replica, and only "
                f"their times are simulated: add time_only (--time-only), simulate {self.outer} "
                "alone, or run hybrid() with train"
            )
        self._check_forecastable()

    def program(self, job: Job, workers: int, conditions: ComputeConditions = PLAIN) -> StepProgram:
        """Workers wait for each collective of a split layer; units are sharded as by FSDP2."""
        from manyhands.placements.forecasts.layer_sizes import (  # noqa: PLC0415 - torch is lazy
            sizes_and_layers,
            tensor_roles,
        )

        self.check(workers)
        if self.pipeline > 1:
            return program_stage_groups(
                self.axes, self.one_pipeline, job, self.find, conditions.pieces
            )
        roles = tensor_roles(job.model, self.find)
        parameters, layers = sizes_and_layers(job, self.data * self.together * self.shard, roles)
        if self.outer is None:
            return StepProgram(
                self._steps(parameters, layers, workers, overlaps=conditions.overlaps)
            )
        size = workers // self.data
        own = self._copy._steps(parameters, layers, size, overlaps=conditions.overlaps)
        whole = self.forecast(parameters, workers, layers)
        return StepProgram(
            tuple(moved(own[rank % size], rank - rank % size) for rank in range(workers)),
            interval=check_outer(self.outer).interval if whole.outer else None,
            outer=tuple(
                BeginCollective(-1, one.kind, one.size, tuple(range(rank % size, workers, size)))
                for rank in range(workers)
                for one in whole.outer
            ),
            coding=self._coding_seconds(self._trained(parameters, layers), conditions.coding),
        )

    def _coding_seconds(self, trained: int, speeds: CodingSpeeds | None) -> tuple[float, float]:
        """Seconds of encoding before a synchronisation, and of decoding all replicas' after it."""
        codec = check_outer(self.outer).codec if self.outer is not None else None
        if codec is None or speeds is None or self.data == 1:
            return 0.0, 0.0
        return (
            speeds.encode_seconds(codec, trained),
            self.data * speeds.decode_seconds(codec, trained),
        )

    def _steps(
        self,
        parameters: Sequence[TensorSize],
        layers: Sequence[LayerSize],
        workers: int,
        *,
        overlaps: bool,
    ) -> tuple[tuple[Instruction, ...], ...]:
        """By worker, the instructions of a step of replicas that sum their gradients."""
        split = split_collectives(layers, self.tensor) if self.tensor > 1 else []
        ahead = sum(layer.role in ("row", "table", "logits") for layer in layers) if split else 0
        times = [*evenly(ahead, 0.0, FORWARD), *evenly(len(split) - ahead, FORWARD, 1.0)]
        exchanged = [
            waiting(one.kind, one.size, at, self.tensor)
            for one, at in zip(split, times, strict=True)
        ]
        by_role = {layer.name: layer.role for layer in layers}
        ranks = []
        for rank in range(workers):
            timed = [*exchanged]
            if self.data * self.shard > 1:
                parts = [
                    part_of(one, by_role, self.tensor, rank % self.tensor) for one in parameters
                ]
                timed += sharded_times(
                    parts, self.axes, reshard_after_forward=True, overlaps=overlaps
                )
            timed.sort(key=lambda one: one.begin)
            ranks.append(instructions(timed, rank, workers))
        return tuple(ranks)


def _words(given: object) -> str:
    """The value of an option, as in a text."""
    return f"[{', '.join(map(str, given))}]" if isinstance(given, tuple) else str(given)


def check_split(job: Job, find: Callable[[nn.Module], TensorPlan]) -> None:
    """Raise ValueError if there is nothing to split.

    A model that cannot be created on the meta device is checked when it is trained.
    """
    from manyhands.parameters.initial.deferred import on_meta  # noqa: PLC0415 - torch is lazy

    try:
        model = on_meta(job.model)
    except Exception:  # noqa: BLE001 - see above
        return
    find(model)
