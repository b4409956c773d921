"""Worker of ZeRO stage 1: whole replicas whose optimizer states are sharded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from manyhands.engine.tensors import as_dtensor, from_rows, own
from manyhands.parameters.scheduled_step import weighted_step
from manyhands.placements.held import stepped
from manyhands.placements.model.local_optimizer import step_on_local_tensors
from manyhands.placements.worker.whole_model import WholeModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from manyhands.job import Job
    from manyhands.placements.held import SteppedTensor
    from manyhands.transport.collectives import Group
    from manyhands.transport.mesh import Mesh
    from manyhands.transport.waits import Waits


class ShardedOptimizer(WholeModel):
    """A replica on every worker, each of which updates its own rows of it.

    The optimizer has only these rows. If it may not work elementwise, they are DTensors, so that an
    optimizer that computes the norm of a whole tensor is correct as well. After its step the rows
    of all workers are gathered, in buckets.

    Args:
        job: the job to train.
        group: the workers.
        device: the device of the replica.
        waits: see `WholeModel`.
        wrap: see `WholeModel`.
        mesh: all workers on one axis named "shard".
        bucket: approximate bytes that are gathered together.
    """

    def __init__(
        self,
        job: Job,
        group: Group,
        device: torch.device,
        waits: Waits,
        wrap: Callable[[nn.Module], nn.Module],
        mesh: Mesh,
        bucket: int,
    ) -> None:
        self._mesh = mesh
        self._own: list[tuple[nn.Parameter, nn.Parameter, slice]] = []
        super().__init__(job, group, device, waits, wrap)
        self._waits = waits
        everything = [whole for whole, _, _ in self._own]
        self._buckets = [_Bucket(tensors, group) for tensors in _fill(everything, bucket)]

    def _make_optimizer(self, job: Job) -> torch.optim.Optimizer:
        """The job's optimizer, for a model whose parameters are this worker's rows."""
        rank, size = self._mesh.place["shard"], self._mesh.axes["shard"]
        rows: dict[int, nn.Parameter] = {}
        places: list[tuple[dict[str, nn.Parameter | None], str, nn.Parameter]] = []
        for module in self.model.modules():
            for name, whole in module._parameters.items():
                # Frozen parameters need no optimizer. A tensor without dims has no rows: every
                # worker updates it with the gradient, which all workers have.
                if whole is None or not whole.requires_grad or not whole.numel() or not whole.dim():
                    continue
                if id(whole) not in rows:
                    part = _rows(whole, rank, size)
                    laid = from_rows(whole.detach()[part], whole, self._mesh.handle)
                    rows[id(whole)] = nn.Parameter(laid, requires_grad=whole.requires_grad)
                    self._own.append((whole, rows[id(whole)], part))
                places.append((module._parameters, name, whole))
        for parameters, name, whole in places:
            parameters[name] = rows[id(whole)]
        try:
            optimizer = job.make_optimizer(self.model)
        finally:
            for parameters, name, whole in places:
                parameters[name] = whole
        plain = step_on_local_tensors(optimizer, [laid for _, laid, _ in self._own])
        self._own = [(whole, plain[laid], part) for whole, laid, part in self._own]
        return optimizer

    def stepped(self) -> list[SteppedTensor]:
        """This worker's rows, and whole those tensors that have none."""
        rows = {id(whole): (laid, part) for whole, laid, part in self._own}
        found = []
        for one in stepped(self.held()):
            if id(one.key) not in rows:
                found.append(one)
                continue
            whole, (laid, part) = one.key, rows[id(one.key)]
            plain = own(laid) is laid
            found.append(
                replace(
                    one,
                    key=laid,
                    begin=(part.start, *(0 for _ in whole.shape[1:])),
                    stores=True,
                    like=laid,
                    cut=partial(_cut, part, None if plain else laid),
                )
            )
        return found

    def consumed(self) -> list[torch.Tensor]:
        """The whole tensors of which the optimizer has rows: every worker has their gradients."""
        wholes = {id(rows): whole for whole, rows, _ in self._own}
        return [wholes.get(id(one), one) for one in super().consumed()]

    def step(self, weight: float) -> None:
        """Update this worker's rows, and gather those of the other workers."""
        for whole, rows, part in self._own:
            if whole.grad is not None:
                gradient, plain = whole.grad[part], own(rows) is rows
                laid = gradient if plain else from_rows(gradient, whole, self._mesh.handle)
                rows.grad = laid
        weighted_step(self.optimizer, weight)
        self.optimizer.zero_grad()
        self.model.zero_grad()
        for bucket in self._buckets:
            bucket.gather(self._waits)


def _cut(part: slice, like: torch.Tensor | None, whole: torch.Tensor) -> torch.Tensor:
    """Some rows of a whole tensor; as a DTensor, if the optimizer steps one."""
    rows = whole[part].clone()
    return rows if like is None else as_dtensor(rows, like)


def _rows(tensor: torch.Tensor, rank: int, size: int) -> slice:
    """The rows of one of so many workers, all of which but the last have equally many."""
    each = -(-len(tensor) // size)
    return slice(min(rank * each, len(tensor)), min((rank + 1) * each, len(tensor)))


@dataclass(frozen=True, eq=False)
class _Bucket:
    """Tensors of one dtype whose rows are gathered together."""

    tensors: list[nn.Parameter]
    group: Group

    @torch.no_grad()
    def gather(self, waits: Waits) -> None:
        """Gather the updated rows of all workers."""
        rank, size = self.group.rank, self.group.size
        padded = [-(-len(one) // size) * one[0].numel() for one in self.tensors]
        first = self.tensors[0]
        mine, gathered_rows = first.new_zeros(sum(padded)), first.new_empty(size * sum(padded))
        for one, place in zip(self.tensors, mine.split_with_sizes(padded), strict=True):
            rows = one[_rows(one, rank, size)]
            place[: rows.numel()] = rows.reshape(-1)
        waits.note("all_gather", gathered_rows.nbytes, size)
        waits.begin()
        self.group.gather(gathered_rows, mine)
        waits.end()
        columns = gathered_rows.view(size, -1).split_with_sizes(padded, dim=1)
        for one, parts in zip(self.tensors, columns, strict=True):
            for owner, part in enumerate(parts):
                rows = one[_rows(one, owner, size)]
                rows.copy_(part[: rows.numel()].view_as(rows))


def _fill(tensors: list[nn.Parameter], limit: int) -> Iterator[list[nn.Parameter]]:
    """Tensors in buckets of one dtype each, closed when they reach the limit."""
    filled: list[nn.Parameter] = []
    size = 0
    for tensor in tensors:
        if filled and (size >= limit or filled[0].dtype != tensor.dtype):
            yield filled
            filled, size = [], 0
        filled.append(tensor)
        size += tensor.nbytes
    if filled:
        yield filled
