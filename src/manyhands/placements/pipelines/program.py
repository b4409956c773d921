"""A pipeline's table as a program: each worker's computations, and the messages between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.collectives import (
    ComputeShare,
    GiveMessage,
    StepProgram,
    TakeMessage,
)
from manyhands.placements.pipelines.messages import LOSS_AND_WEIGHT, stage_outputs
from manyhands.schedules import Durations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from manyhands.collectives import Instruction
    from manyhands.costs import LayerSize
    from manyhands.schedules import Action, Table


def durations_of(table: Table, work: Sequence[tuple[float, float]]) -> Durations:
    """Durations of each stage for a microbatch, as shares of a worker's time for its batch.

    All workers together compute for as many such times as there are workers. The gradients of a
    stage's inputs and of its parameters take a half of its backward each.

    Args:
        table: the schedule.
        work: by stage, what its forward and its backward take, in any unit.
    """
    scale = len(table.ranks) / (sum(map(sum, work)) * table.microbatches)
    half = tuple(scale * backward / 2 for _, backward in work)
    return Durations(tuple(scale * forward for forward, _ in work), half, half)


def pipeline_program(
    table: Table, layers: Sequence[LayerSize], work: Sequence[tuple[float, float]]
) -> StepProgram:
    """What the workers of a pipeline do in a step.

    Args:
        table: the schedule.
        layers: the calls of every stage.
        work: by stage, what its forward and its backward take, in any unit.
    """
    ranks = range(len(table.ranks))
    return StepProgram(tuple(tuple(stage_program(table, layers, work, rank)) for rank in ranks))


def stage_program(
    table: Table,
    layers: Sequence[LayerSize],
    work: Sequence[tuple[float, float]],
    rank: int,
    beside: Callable[[Action], Iterable[Instruction]] = lambda _: (),
    after: Iterable[Instruction] = (),
) -> list[Instruction]:
    """What one worker of a pipeline does in a step; at its end the last one sends the loss to all.

    Args:
        table: the schedule.
        layers: the calls of every stage.
        work: by stage, what its forward and its backward take, in any unit.
        rank: the worker's number in its pipeline.
        beside: what else belongs to an action, before its result is sent.
        after: what follows the actions.
    """
    durations, outputs = durations_of(table, work), stage_outputs(layers)
    last = len(table.ranks) - 1
    own: list[Instruction] = []
    for action in table.ranks[rank]:
        own += _inputs(action, table)
        if share := durations.of(action):
            own.append(ComputeShare(share))
        own += beside(action)
        own += _outputs(action, table, outputs)
    own += after
    if rank == last:
        own += [GiveMessage(to, LOSS_AND_WEIGHT, ("loss", 0, 0)) for to in range(last)]
    else:
        own.append(TakeMessage(last, ("loss", 0, 0)))
    return own


def _inputs(action: Action, table: Table) -> Iterator[TakeMessage]:
    """What an action needs of another worker."""
    stage, number = action.stage, action.microbatch
    if action.kind == "forward" and stage:
        yield from _from(stage - 1, table, action, ("forward", stage - 1, number))
    elif action.kind in ("backward", "input") and stage + 1 < table.stages:
        yield from _from(stage + 1, table, action, ("backward", stage + 1, number))


def _from(
    stage: int, table: Table, action: Action, tag: tuple[str, int, int]
) -> Iterator[TakeMessage]:
    if table.rank_of(stage) != table.rank_of(action.stage):
        yield TakeMessage(table.rank_of(stage), tag)


def _outputs(action: Action, table: Table, outputs: dict[int, list[int]]) -> Iterator[GiveMessage]:
    """What an action sends to another worker; a gradient has the bytes of the output."""
    if action.kind == "weight":
        return
    forward, number = action.kind == "forward", action.microbatch
    to = action.stage + (1 if forward else -1)
    if 0 <= to < table.stages and table.rank_of(to) != table.rank_of(action.stage):
        size = outputs[action.stage if forward else to][number]
        kind = "forward" if forward else "backward"
        yield GiveMessage(table.rank_of(to), size, (kind, action.stage, number))
