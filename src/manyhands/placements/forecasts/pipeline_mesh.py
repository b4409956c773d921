"""Forecast of pipelines on a mesh, worker by worker."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from manyhands.costs import Collective, Forecast
from manyhands.placements.forecasts.tensor_parallel import part_of, split_collectives
from manyhands.placements.pipelines.messages import messages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from torch import nn

    from manyhands.costs import LayerSize, PieceTime, TensorSize
    from manyhands.job import Job
    from manyhands.placements.model.tensor_plan import TensorPlan
    from manyhands.placements.pipeline import Pipeline
    from manyhands.splitting import Chain


def stage_groups_forecast(
    axes: Mapping[str, int],
    one: Pipeline,
    parameters: Sequence[TensorSize],
    layers: Sequence[LayerSize],
    loose: Collection[str] = (),
) -> Forecast:
    """Messages between stages, and collectives of split layers, shards and gradients.

    Args:
        axes: lengths of the mesh's axes `data`, `pipeline`, `shard` and `tensor`.
        one: one of the pipelines on it.
        parameters: their `unit` is the number of a stage.
        layers: calls of every stage and of every split layer, one per microbatch.
        loose: parameters that are not sharded.
    """
    data, pipeline, shard, tensor = (axes[name] for name in ("data", "pipeline", "shard", "tensor"))
    microbatches = sum(call.role == "stage" and call.name == "0" for call in layers)
    table = one.table(pipeline, microbatches)
    units = {one.name: one.unit for one in parameters}
    roles = {layer.name: layer.role for layer in layers if layer.role != "stage"}
    step: dict[tuple[int, int], tuple[Collective, ...]] = {}
    memory = 0
    for place, sent in enumerate(messages_of(table, layers)):
        held = [str(stage) for stage in range(table.stages) if table.rank_of(stage) == place]
        split = [one for one in layers if units.get(f"{one.name}.weight") in held]
        exchanged = split_collectives([learning(one, units) for one in split], tensor)
        for share in range(tensor):
            parts = [part_of(one, roles, tensor, share) for one in parameters]
            own = [one for one in parts if one.unit in held]
            copied = [one for one in own if shard == 1 or one.name in loose]
            rest = [one for one in own if one not in copied]
            sharded = [[one for one in rest if one.unit == stage] for stage in held]
            reduced = chain.from_iterable(reduced_stage(stage, shard, data) for stage in sharded)
            step[place, share] = (*sent, *exchanged, *reduced, *_averaged(copied, (data, shard)))
            whole = sum(_held(stage, shard) for stage in sharded)
            memory = max(memory, _held(copied, 1) + whole)
    within = shard * tensor
    by_worker = tuple(
        step[rank // within % pipeline, rank % tensor] for rank in range(data * pipeline * within)
    )
    return Forecast(start=(), step=by_worker[0], memory=memory, by_worker=by_worker)


def learning(layer: LayerSize, units: Mapping[str, str]) -> LayerSize:
    """The inputs of a later stage always need a gradient: the previous stage waits for it."""
    return layer if units[f"{layer.name}.weight"] == "0" else replace(layer, learns=True)


def reduced_stage(stage: Sequence[TensorSize], shard: int, data: int) -> Iterable[Collective]:
    """Once per step, a stage's shards are gathered and its gradients reduced and scattered."""
    if not stage:
        return
    yield Collective("all_gather", sum(one.padded(shard) for one in stage), shard)
    scattered = sum(one.padded(shard) for one in stage if one.trained)
    if scattered:
        yield Collective("reduce_scatter", scattered, shard)
        if data > 1:
            yield Collective("allreduce", scattered // shard, data)


def _averaged(copied: Sequence[TensorSize], axes: Iterable[int]) -> Iterable[Collective]:
    """Allreduces that average a worker's gradients, over one axis after the other."""
    size = sum(one.size for one in copied if one.trained)
    for copies in axes:
        if size and copies > 1:
            yield Collective("allreduce", size, copies)


def _held(tensors: Sequence[TensorSize], shards: int) -> int:
    """Bytes of parameters and gradients: shards, and the gathered parameters during a step."""
    padded = sum(one.padded(shards) * (2 if one.trained else 1) for one in tensors)
    return padded // shards + (padded if shards > 1 else 0)


def forecast_stage_groups(
    axes: Mapping[str, int], one: Pipeline, job: Job, find: Callable[[nn.Module], TensorPlan]
) -> Forecast:
    """The forecast of a step with a full batch, without allocating the model's parameters.

    Without `split_points`, stages have about equally many parameters.
    """
    parameters, layers, pieces, _ = inspect_mesh(axes, one, job, find)
    return stage_groups_forecast(axes, one, parameters, layers, pieces.loose)


def inspect_mesh(
    axes: Mapping[str, int],
    one: Pipeline,
    job: Job,
    find: Callable[[nn.Module], TensorPlan],
    known: Sequence[PieceTime] = (),
) -> tuple[list[TensorSize], list[LayerSize], Chain, list[tuple[float, float]]]:
    """Sizes of the stages' parameters and of all calls, the pieces, and the work of stages."""
    from manyhands.parameters.weights.microbatches import sizes_of  # noqa: PLC0415 - torch is lazy
    from manyhands.placements.forecasts.layer_sizes import inspect_layers, tensor_roles  # noqa: PLC0415
    from manyhands.placements.pipelines.stages import inspect_stages, stage_work  # noqa: PLC0415

    workers = axes["pipeline"]
    share = -(-job.batch_sizes.at(0) // (axes["data"] * axes["shard"]))
    sizes = sizes_of(share, one.most_microbatches(share, workers))
    model, pieces, inputs = one.outline(job, workers, find)
    about = (inputs, one.held(workers), one.split_points, sizes, known)
    parameters, layers = inspect_stages(model, pieces, *about)
    work = stage_work(pieces, *about)
    if axes["tensor"] > 1:
        roles = tensor_roles(job.model, find)
        calls = {
            size: inspect_layers(job.model, inputs.new_empty(size, *inputs.shape[1:]), roles)
            for size in {*sizes}
        }
        layers += chain.from_iterable(calls[size] for size in sizes)
    return parameters, layers, pieces, work
