"""Creation of a worker's pipeline stages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from manyhands.collectives import FORWARD
from manyhands.costs import LayerSize, PieceTime, TensorSize
from manyhands.engine.fake_tensors import is_fake, really
from manyhands.engine.tensors import as_dtensor, gathered, own_part
from manyhands.files.checkpoint import Entry, State
from manyhands.parameters.gradients import build
from manyhands.parameters.initial.deferred import first_values, on_meta, outline
from manyhands.placements.model.materialize import aliases
from manyhands.placements.model.mesh_layout import inseparable
from manyhands.placements.model.sample_batch import example
from manyhands.placements.model.tensor_plan import TensorPlan
from manyhands.placements.pipelines.boundaries import StageBoundaries
from manyhands.seeding import random_state, restore_random_state
from manyhands.splitting import (
    PieceCost,
    Unsplittable,
    chain,
    check_stages,
    describe,
    estimate,
    fill,
    measure,
    partition,
    with_times,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from manyhands.job import Job
    from manyhands.placements.pipelines.stage_group import StageGroup
    from manyhands.splitting import Chain, Section
    from manyhands.transport.collectives import Group

_FINENESS: Final = 4
"""Pieces per stage that are searched for, so that stages can be balanced."""
_STATE: Final = 1 << 22
"""The tag of messages with the state, above those of a step and of an evaluation."""


@dataclass(frozen=True)
class Piece:
    """A tensor of the model's state: its owner, shape and dtype."""

    owner: int
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Staged:
    """A model in stages, some of which are on this worker."""

    sections: dict[int, Section]
    """This worker's stages, by number."""
    optimizer: torch.optim.Optimizer
    """The job's optimizer, for this worker's parameters."""
    passing: StageBoundaries
    """Shapes of the tensors between stages."""
    stages: int
    """Number of all stages."""
    words: tuple[str, ...]
    """Description of the split, a line for every stage; then the layers that are split."""
    pieces: dict[str, Piece]
    """The tensors of the whole model's state, by name."""
    tensors: dict[str, torch.Tensor]
    """The tensors of it that this worker has."""
    aliases: dict[str, str]
    """Further names of tied tensors."""

    def state(self, group: Group) -> State:
        """The whole model's state, sent to the first worker tensor by tensor."""
        entries = {
            name: Entry(piece.dtype, piece.shape, _fetch(group, piece, self.tensors.get(name)))
            for name, piece in self.pieces.items()
        }
        return State(entries, self.aliases)


def _fetch(group: Group, piece: Piece, tensor: torch.Tensor | None) -> Callable[[], torch.Tensor]:
    def fetch() -> torch.Tensor:
        # A tensor of another worker is received on the first worker, and unused elsewhere.
        empty = partial(torch.empty, piece.shape, dtype=piece.dtype, device=group.device)
        held = empty() if tensor is None else gathered(tensor)
        if group.rank == 0 != piece.owner:
            group.receive(held, piece.owner, _STATE).wait()
        elif group.rank == piece.owner != 0:
            group.send(held, 0, _STATE).wait()
        return held.cpu()

    return fetch


def make_stages(
    job: Job,
    stage_group: StageGroup,
    device: torch.device,
    held: Sequence[int],
    samples: int,
    split_points: Sequence[str],
) -> Staged:
    """Create the job's model, split it, and keep this worker's stages.

    Args:
        job: the job to train; random generators have been seeded with its seed.
        stage_group: the workers; stage s is on worker s, modulo their number.
        device: the device of this worker.
        held: for each stage, the number of microbatches in flight.
        samples: samples of a microbatch.
        split_points: names of the pieces at which stages begin; if empty, stages are balanced.
    """
    group, division, fake = stage_group.group, stage_group.division, is_fake()
    find = division.find if division else _nothing
    with really():
        inputs = example(job, samples)
        model, pieces, plan, numbers = _structure(
            job, inputs, device, len(held), split_points, find, fake
        )
        if split_points:
            starts = by_hand(pieces, split_points)
            words = _names(pieces, starts)
        else:
            measured = (
                estimate(pieces, inputs.to("meta"))
                if fake
                else _measured(pieces, inputs.to(device), stage_group.all_workers, device)
            )
            starts = partition(measured, held)
            words = describe(measured, starts, held)
        borders = [*pairwise([*starts, len(pieces)])]
        stages = [pieces.section(first, stop) for first, stop in borders]
        passing = StageBoundaries(
            model, stages, inputs.to("meta" if numbers is not None else device)
        )
    owners = {
        name: number % group.size
        for number, stage in reversed([*enumerate(stages)])
        for name in (*dict(stage.named_parameters()), *dict(stage.named_buffers()))
    }
    # Tensors that no stage uses keep their initial values, and belong to the first worker.
    own = {name for name, _ in _named(model) if owners.get(name, 0) == group.rank} | {
        name
        for number, stage in enumerate(stages)
        if number % group.size == group.rank
        for name, _ in stage.named_buffers()
    }
    if division:
        with really():
            division.split(model, plan)
    if fake:
        fill(model, _fake_values(model, own, device))
    elif numbers is not None:
        fill(model, _values(job, numbers, model, own, device))
    sections = {
        number: pieces.section(first, stop)
        for number, (first, stop) in enumerate(borders)
        if number % group.size == group.rank
    }
    again = aliases(model)
    stored = [name for name in model.state_dict() if name not in again]
    if division:
        division.shard(sections.values(), pieces.loose)
    named = dict(_named(model))
    state = {name: named[name] for name in stored if name in named}
    return Staged(
        sections,
        _own_part(job.make_optimizer(model), sections.values()),
        passing,
        len(stages),
        (*words, *plan.words),
        {
            name: Piece(owners.get(name, 0), tensor.dtype, tuple(tensor.shape))
            for name, tensor in state.items()
        },
        {name: tensor for name, tensor in state.items() if name in own},
        {name: first for name, first in again.items() if first in state},
    )


def _structure(
    job: Job,
    inputs: torch.Tensor,
    device: torch.device,
    stages: int,
    split_points: Sequence[str],
    find: Callable[[nn.Module], TensorPlan],
    fake: bool,
) -> tuple[nn.Module, Chain, TensorPlan, Mapping[str, int] | None]:
    """The model on meta, its pieces, its tensor plan, and the numbers for its initial values.

    A model that cannot be created on the meta device is created whole, except in a dry run.
    """
    state = random_state()
    try:
        make = partial(build, job)
        model = on_meta(make)
        plan = find(model)
        pieces = find_pieces(model, inputs.to("meta"), stages, split_points, plan)
        return model, pieces, plan, {} if fake else outline(make).numbers
    except Unsplittable:
        raise
    except Exception:
        # User code may need the values of parameters, and raise anything.
        if fake:
            raise
        restore_random_state(state)
        model = build(job).to(device)
        plan = find(model)
        return model, find_pieces(model, inputs.to(device), stages, split_points, plan), plan, None


def _nothing(_: nn.Module) -> TensorPlan:
    return TensorPlan()


def _named(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _values(
    job: Job,
    numbers: Mapping[str, int],
    model: nn.Module,
    own: Collection[str],
    device: torch.device,
) -> dict[str, torch.Tensor]:
    """The initial values of this worker's tensors, equal to those of a model on one worker."""
    laid = dict(_named(model))
    kept = first_values(
        partial(build, job),
        numbers,
        lambda name, whole: own_part(laid[name], whole) if name in own else whole.new_empty(0),
    )
    return {
        name: as_dtensor(value.to(device), laid[name])
        for name, value in kept.items()
        if name in own
    }


def _fake_values(
    model: nn.Module, own: Collection[str], device: torch.device
) -> dict[str, torch.Tensor]:
    """This worker's tensors as fake tensors: on its device, without content."""
    return {
        name: torch.empty_like(tensor, device=device)
        for name, tensor in _named(model)
        if name in own
    }


def find_pieces(
    model: nn.Module,
    inputs: torch.Tensor,
    stages: int,
    split_points: Sequence[str],
    plan: TensorPlan | None = None,
) -> Chain:
    """The pieces of a model for a number of stages, or for these split points.

    Layers that a plan splits together are in one piece.

    Raises:
        Unsplittable: there are fewer pieces than stages, or none of this name.
    """
    together = inseparable(model, plan) if plan else []
    found = chain(model, inputs, _FINENESS * stages, together)
    check_stages(found, stages)
    for name in split_points:
        if _begin(found, name) is None:
            raise Unsplittable(
                f"no stage can begin at {name!r}: use one of {', '.join(found.names[1:])}"
            )
    return found


def inspect_stages(
    model: nn.Module,
    pieces: Chain,
    inputs: torch.Tensor,
    held: Sequence[int],
    split_points: Sequence[str],
    samples: Sequence[int],
    known: Sequence[PieceTime] = (),
) -> tuple[list[TensorSize], list[LayerSize]]:
    """Sizes of the stages' parameters, and of their calls for microbatches of these samples.

    Without split points, stages take equally long by the known times of pieces; without these, they
    have about equally many multiplications.
    """
    if split_points:
        starts = by_hand(pieces, split_points)
    else:
        starts = partition(_costs(pieces, inputs, samples, known), held)
    stages = [pieces.section(first, stop) for first, stop in pairwise([*starts, len(pieces)])]
    passing = StageBoundaries(model, stages, inputs)
    parameters = [
        TensorSize(name, one.nbytes, one.requires_grad, _rows(one), str(number))
        for number, stage in enumerate(stages)
        for name, one in stage.named_parameters()
    ]
    calls = []
    for number in range(len(stages) - 1):
        for count in samples:
            given = passing.size_after(number - 1, count) if number else 0
            gives = passing.size_after(number, count)
            calls.append(LayerSize(str(number), "stage", given, gives))
    return parameters, calls


def stage_work(
    pieces: Chain,
    inputs: torch.Tensor,
    held: Sequence[int],
    split_points: Sequence[str],
    samples: Sequence[int],
    known: Sequence[PieceTime] = (),
) -> list[tuple[float, float]]:
    """By stage of `inspect_stages`, what its forward and its backward take, in any unit.

    By the known times of pieces; without these by multiplications, and equally if there are none.
    """
    costs = _costs(pieces, inputs, samples, known)
    starts = by_hand(pieces, split_points) if split_points else partition(costs, held)
    work = [
        (sum(one.forward for one in own), sum(one.backward for one in own))
        for own in (costs[first:stop] for first, stop in pairwise([*starts, len(pieces)]))
    ]
    return work if any(map(sum, work)) else [(FORWARD, 1 - FORWARD)] * len(work)


def _costs(
    pieces: Chain, inputs: torch.Tensor, samples: Sequence[int], known: Sequence[PieceTime]
) -> tuple[PieceCost, ...]:
    costs = estimate(pieces, inputs.new_empty(samples[0], *inputs.shape[1:]))
    return with_times(costs, pieces.first_layers, known) if known else costs


def _rows(tensor: torch.Tensor) -> int:
    return tensor.shape[0] if tensor.dim() else 1


def by_hand(pieces: Chain, split_points: Sequence[str]) -> tuple[int, ...]:
    """Indices of the pieces at which stages begin, given the names of all but the first."""
    found = [_begin(pieces, name) for name in split_points]
    starts = (0, *(place for place in found if place is not None))
    if [*starts] != sorted(set(starts)):
        raise Unsplittable(
            f"split_points must be in the order of the model, got {', '.join(split_points)}"
        )
    return starts


def _begin(pieces: Chain, name: str) -> int | None:
    """Index of the piece of this name; of a module that is in several pieces, of the first."""
    inside = (place for place, one in enumerate(pieces.names) if f"{one}.".startswith(f"{name}."))
    return next(inside, None)


def _names(pieces: Chain, starts: Sequence[int]) -> tuple[str, ...]:
    return tuple(
        f"stage {number}: {pieces.names[first]} to {pieces.names[stop - 1]}, by split_points"
        for number, (first, stop) in enumerate(pairwise([*starts, len(pieces)]))
    )


def _measured(
    pieces: Chain, inputs: torch.Tensor, group: Group, device: torch.device
) -> tuple[PieceCost, ...]:
    """Costs measured on the first worker and broadcast, because all workers must split alike."""
    word = torch.zeros(len(pieces), 4, dtype=torch.float64, device=device)
    if group.rank == 0:
        word = torch.tensor(
            [
                [one.forward, one.backward, one.parameters, one.activations]
                for one in measure(pieces, inputs)
            ],
            dtype=torch.float64,
            device=device,
        )
    group.broadcast(word)
    return tuple(
        PieceCost(name, forward, backward, int(parameters), int(activations))
        for name, (forward, backward, parameters, activations) in zip(
            pieces.names, word.tolist(), strict=True
        )
    )


def _own_part(
    optimizer: torch.optim.Optimizer, sections: Iterable[nn.Module]
) -> torch.optim.Optimizer:
    """Drop the parameters of other workers from the optimizer; keep its groups and settings."""
    own = {id(parameter) for section in sections for parameter in section.parameters()}
    for group in optimizer.param_groups:
        group["params"] = [parameter for parameter in group["params"] if id(parameter) in own]
    return optimizer
