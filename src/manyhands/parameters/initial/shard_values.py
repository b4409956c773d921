"""Initial state of a shard, without the whole model in memory at any time.

A small model is created whole, and the shard is copied out of it. A larger one is created twice
(`manyhands.parameters.initial.deferred`): first for its structure, from which the layout and the
optimizer are constructed, then for its values, of which only the shard's are kept. The values are
bitwise equal in both cases.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from manyhands.parameters.gradients import build
from manyhands.parameters.initial.deferred import HELD, Outline, outline_or_whole, place_values
from manyhands.parameters.initial.trimming import trim
from manyhands.parameters.initial.uncompiled_mode import UncompiledMode
from manyhands.parameters.initial.watching import Unmakeable
from manyhands.parameters.layout import Layout
from manyhands.seeding import seed_all

if TYPE_CHECKING:
    from torch import nn, optim

    from manyhands.job import Job
    from manyhands.parameters.layout import Shard


@dataclass(frozen=True)
class ShardValues:
    """The initial state of a shard."""

    layout: Layout
    bytes: torch.Tensor
    """The shard's parameters, then its buffers."""
    optimizer: optim.Optimizer
    """The job's optimizer, over parameters that will be replaced by the shard's."""


def make(job: Job) -> tuple[nn.Module, optim.Optimizer]:
    """The job's model and optimizer, created with its seed."""
    seed_all(job.seed)
    model = build(job)
    return model, job.make_optimizer(model)


def begin(job: Job, number: int, servers: int, held: int = HELD) -> ShardValues:
    """The initial state of a shard.

    Args:
        job: the job that defines the model and the optimizer.
        number: index of the shard.
        servers: number of shards.
        held: bytes of parameters up to which a model is created whole.
    """
    with contextlib.suppress(Unmakeable):
        seed_all(job.seed)
        made = outline_or_whole(lambda: build(job), held)
        if isinstance(made, Outline):
            return _begin_in_parts(job, made, number, servers, held)
        return _begin_whole(made, job.make_optimizer(made), number, servers)
    # Outside of the handler, whose traceback would keep the partial model in memory.
    trim()
    return _begin_whole(*make(job), number, servers)


def _begin_whole(
    model: nn.Module, optimizer: optim.Optimizer, number: int, servers: int
) -> ShardValues:
    layout = Layout.of(model, optimizer, servers)
    shard = layout.shards[number]
    room = torch.zeros(shard.nbytes, dtype=torch.uint8)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        _Placing(shard, room)(name, tensor.detach())
    return ShardValues(layout, room, optimizer)


def _begin_in_parts(job: Job, sketch: Outline, number: int, servers: int, held: int) -> ShardValues:
    before = _tensors(sketch.model)
    with _Unchanging():  # type: ignore[no-untyped-call]  # torch's
        optimizer = _optimizer(job, sketch.model)
    after = _tensors(sketch.model)
    if before.keys() != after.keys() or any(before[name] is not after[name] for name in before):
        raise Unmakeable("the optimizer's function changes the model")
    layout = Layout.of(sketch.model, optimizer, servers)
    shard = layout.shards[number]
    room = torch.zeros(shard.nbytes, dtype=torch.uint8)
    seed_all(job.seed)
    place_values(lambda: build(job), sketch.numbers, _Placing(shard, room), held)
    return ShardValues(layout, room, optimizer)


def _optimizer(job: Job, model: nn.Module) -> optim.Optimizer:
    try:
        return job.make_optimizer(model)
    except Exception as error:
        # Maybe because there are no values: it is tried again with values, and may fail again.
        raise Unmakeable(f"the optimizer cannot be constructed on meta: {error}") from error


class _Placing:
    """Copies a shard's part of a tensor to its place in the shard's bytes."""

    def __init__(self, shard: Shard, room: torch.Tensor) -> None:
        self._fragments = {piece.name: piece for piece in (*shard.parameters, *shard.buffers)}
        self._room = room

    def __call__(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """Copy the part, and return its view in the shard."""
        fragment = self._fragments.get(name)
        if fragment is None:
            return torch.empty(0, dtype=whole.dtype)
        place = fragment.view(self._room).view(-1)
        return place.copy_(whole.reshape(-1)[fragment.start : fragment.stop])


class _Unchanging(UncompiledMode):
    """While active, raises for writes to meta tensors, which would be lost."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, unless it writes to a meta tensor."""
        if func._schema.is_mutable and any(
            isinstance(one, torch.Tensor) and one.is_meta for one in tree_leaves((args, kwargs))
        ):
            raise Unmakeable(f"{func} changes a parameter while the optimizer is constructed")
        return func(*args, **(kwargs or {}))


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())
