"""Program of pipelines on a mesh: what each worker does in a step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from manyhands.collectives import (
    BeginCollective,
    EndCollective,
    GiveMessage,
    StepProgram,
    TakeMessage,
    instructions,
    waiting,
)
from manyhands.costs import Collective
from manyhands.placements.forecasts.pipeline_mesh import inspect_mesh, learning, reduced_stage
from manyhands.placements.forecasts.tensor_parallel import part_of, split_collectives
from manyhands.placements.pipelines.program import stage_program

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from torch import nn

    from manyhands.collectives import Instruction
    from manyhands.costs import LayerSize, PieceTime, TensorSize
    from manyhands.job import Job
    from manyhands.placements.model.tensor_plan import TensorPlan
    from manyhands.placements.pipeline import Pipeline
    from manyhands.schedules import Action, Table

_Among: TypeAlias = "tuple[Collective, int, int]"
"""A collective, the number of its workers, and the difference between their ranks."""


def program_stage_groups(
    axes: Mapping[str, int],
    one: Pipeline,
    job: Job,
    find: Callable[[nn.Module], TensorPlan],
    known: Sequence[PieceTime] = (),
) -> StepProgram:
    """What workers on a mesh with pipelines do in a step.

    A stage's shards are gathered before its first action and reduced after its last one. Workers
    wait for the collectives of split layers, which are divided evenly among the actions.

    Args:
        axes: lengths of the mesh's axes `data`, `pipeline`, `shard` and `tensor`.
        one: one of the pipelines on it.
        job: the job.
        find: returns the layers of a model that are split along `tensor`.
        known: by piece of the model, its measured times.
    """
    parameters, layers, pieces, work = inspect_mesh(axes, one, job, find, known)
    microbatches = sum(call.role == "stage" and call.name == "0" for call in layers)
    table = one.table(axes["pipeline"], microbatches)
    workers = axes["data"] * axes["pipeline"] * axes["shard"] * axes["tensor"]
    about = (axes, table, parameters, layers, pieces.loose, work)
    return StepProgram(tuple(tuple(_of(rank, workers, *about)) for rank in range(workers)))


def _of(
    rank: int,
    workers: int,
    axes: Mapping[str, int],
    table: Table,
    parameters: Sequence[TensorSize],
    layers: Sequence[LayerSize],
    loose: Collection[str],
    work: Sequence[tuple[float, float]],
) -> list[Instruction]:
    """The instructions of one worker."""
    within, tensor = axes["shard"] * axes["tensor"], axes["tensor"]
    place = rank // within % axes["pipeline"]
    held = [str(stage) for stage in range(table.stages) if table.rank_of(stage) == place]
    units = {one.name: one.unit for one in parameters}
    roles = {layer.name: layer.role for layer in layers if layer.role != "stage"}
    split = [one for one in layers if units.get(f"{one.name}.weight") in held]
    exchanged: list[_Among] = [
        (one, tensor, 1)
        for one in split_collectives([learning(one, units) for one in split], tensor)
    ]
    ahead = sum(layer.role in ("row", "table", "logits") for layer in split)
    actions = table.ranks[place]
    shares = _divided(exchanged[:ahead], [one for one in actions if one.kind == "forward"])
    shares |= _divided(
        exchanged[ahead:], [one for one in actions if one.kind in ("backward", "input")]
    )
    parts = [part_of(one, roles, tensor, rank % tensor) for one in parameters]
    gathered, summed = _reductions([one for one in parts if one.unit in held], held, axes, loose)
    waits = _Waits(rank, workers)
    steps = stage_program(
        table,
        layers,
        work,
        place,
        beside=lambda action: waits.on(shares.get(action, ())),
        after=waits.on(summed),
    )
    first = rank - place * within
    return [*waits.on(gathered), *(_moved(one, first, within) for one in steps)]


def _divided(
    collectives: Sequence[_Among], actions: Sequence[Action]
) -> dict[Action, Sequence[_Among]]:
    """Collectives, divided evenly among actions in order."""
    count, among = len(collectives), len(actions)
    return {
        action: collectives[count * number // among : count * (number + 1) // among]
        for number, action in enumerate(actions)
    }


def _reductions(
    own: Sequence[TensorSize],
    stages: Sequence[str],
    axes: Mapping[str, int],
    loose: Collection[str],
) -> tuple[list[_Among], list[_Among]]:
    """What a worker gathers before its actions, and reduces after them."""
    data, shard, tensor = axes["data"], axes["shard"], axes["tensor"]
    apart = axes["pipeline"] * shard * tensor
    copied = [one for one in own if shard == 1 or one.name in loose]
    gathered: list[_Among] = []
    summed: list[_Among] = []
    for stage in stages:
        sharded = [one for one in own if one.unit == stage and one not in copied]
        for one in reduced_stage(sharded, shard, data):
            if one.kind == "all_gather":
                gathered.append((one, shard, tensor))
            elif one.kind == "reduce_scatter":
                summed.append((one, shard, tensor))
            else:
                summed.append((one, data, apart))
    size = sum(one.size for one in copied if one.trained)
    for copies, stride in ((data, apart), (shard, tensor)):
        if size and copies > 1:
            summed.append((Collective("allreduce", size, copies), copies, stride))
    return gathered, summed


def _moved(one: Instruction, first: int, stride: int) -> Instruction:
    """An instruction of a pipeline's worker with the ranks of the mesh."""
    match one:
        case GiveMessage(to=to):
            return replace(one, to=first + to * stride)
        case TakeMessage(sender=sender):
            return replace(one, sender=first + sender * stride)
        case _:
            return one


class _Waits:
    """Numbers the collectives of a worker, which waits for each of them."""

    def __init__(self, rank: int, workers: int) -> None:
        self._rank, self._workers, self._next = rank, workers, 0

    def on(self, collectives: Iterable[_Among]) -> list[Instruction]:
        """The instructions of these collectives, one after another."""
        found: list[Instruction] = []
        for one, among, stride in collectives:
            timed = [waiting(one.kind, one.size, 0.0, among, stride)]
            found += (
                replace(instruction, key=self._next)
                for instruction in instructions(timed, self._rank, self._workers)
                if isinstance(instruction, BeginCollective | EndCollective)
            )
            self._next += 1
        return found
