"""Layout of a model's parameters in the shards of servers.

The trained parameters of a model, in a fixed order, form one flat byte tensor; servers own
consecutive parts of it. A worker keeps its parameters in such a tensor too, so a pull is received
in place and a push is sent without a copy.

With an elementwise optimizer (SGD, Adam, …) a tensor may be divided between two servers. For one
that needs whole tensors shards end at tensor boundaries, and one that needs all parameters together
has one server: `manyhands.parameters.coupling` finds out by a trial.

Tied parameters appear once. Frozen parameters, and those in no parameter group, never change and
are left out. Tensors are ordered by element size, largest first, so that all are aligned with any
mix of dtypes. Floating-point buffers (batch-norm statistics) follow the parameters of the last
shard; they are averaged, not trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from math import prod
from typing import TYPE_CHECKING

from manyhands.parameters.coupling import check_step, coupling_of, named

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import nn, optim

_LINE = 4 << 20
"""Largest size in bytes of a flat fragment that an optimizer steps at once."""


@dataclass(frozen=True)
class Fragment:
    """A part of a tensor, or a whole one."""

    name: str
    """Name of the parameter or buffer."""
    start: int
    """First element in the flattened tensor."""
    stop: int
    """End of its elements in the flattened tensor (exclusive)."""
    shape: tuple[int, ...]
    """The tensor's shape if it is whole, else a flat shape."""
    dtype: torch.dtype
    group: int
    """Index of the optimizer's parameter group; −1 for a buffer."""
    offset: int
    """Offset in its shard, in bytes."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return (self.stop - self.start) * self.dtype.itemsize

    def bytes(self, shard: torch.Tensor) -> torch.Tensor:
        """This fragment's bytes in its shard."""
        return shard[self.offset : self.offset + self.nbytes]

    def view(self, shard: torch.Tensor) -> torch.Tensor:
        """A view of this fragment in the bytes of its shard, in its own dtype and shape.

        A parameter is always aligned. A buffer is aligned in a shard that has its own memory, and
        may not be if the shard is a part of a larger tensor: see `bytes`.
        """
        flat = self.bytes(shard).view(self.dtype)
        return flat if len(self.shape) == 1 else flat.view(self.shape)


@dataclass(frozen=True)
class Shard:
    """The part of the parameters and buffers that one server holds."""

    number: int
    parameters: tuple[Fragment, ...]
    buffers: tuple[Fragment, ...]

    @cached_property
    def nbytes(self) -> int:
        """Bytes of its parameters and buffers."""
        return max(piece.offset + piece.nbytes for piece in (*self.parameters, *self.buffers))

    @cached_property
    def flat_by_group(self) -> tuple[Fragment, ...]:
        """The parameters as flat fragments; adjacent ones of one dtype and group are merged.

        A large one is divided, so that the temporaries of a step fit into the cache.
        """
        lines: list[Fragment] = []
        for piece in self.parameters:
            size, first = piece.stop - piece.start, piece
            if lines and _follows(lines[-1], piece):
                first = lines.pop()
                size += first.stop
            lines.append(Fragment("", 0, size, (size,), first.dtype, first.group, first.offset))
        return tuple(part for line in lines for part in _cut(line))

    @cached_property
    def flat_by_dtype(self) -> tuple[Fragment, ...]:
        """The parameters as flat fragments, one per dtype, for elementwise operations.

        A model of many small tensors then takes one operation instead of many.
        """
        lines = []
        for dtype, pieces in groupby(self.parameters, key=lambda piece: piece.dtype):
            first, *others = pieces
            size = sum(piece.stop - piece.start for piece in (first, *others))
            lines.append(Fragment("", 0, size, (size,), dtype, -1, first.offset))
        return tuple(lines)

    def vector(self, shard: torch.Tensor) -> torch.Tensor:
        """The parameters in the bytes of this shard as one vector, without buffers; a view.

        Raises:
            ValueError: the parameters have several dtypes.
        """
        if len(self.flat_by_dtype) > 1:
            dtypes = ", ".join(str(flat.dtype) for flat in self.flat_by_dtype)
            raise ValueError(
                f"parameters of several dtypes ({dtypes}) are no vector: use a model with one, or "
                "a strategy that exchanges bytes"
            )
        return self.flat_by_dtype[0].view(shard)


def _cut(line: Fragment) -> Iterable[Fragment]:
    """A flat fragment in parts of at most `_LINE` bytes."""
    width = line.dtype.itemsize
    for start in range(0, line.stop, _LINE // width):
        size = min(_LINE // width, line.stop - start)
        at = line.offset + start * width
        yield Fragment("", 0, size, (size,), line.dtype, line.group, at)


def _follows(line: Fragment, piece: Fragment) -> bool:
    """Whether a fragment is adjacent to a flat one, with the same dtype and group."""
    alike = (line.dtype, line.group) == (piece.dtype, piece.group)
    return alike and line.offset + line.nbytes == piece.offset


@dataclass(frozen=True)
class Layout:
    """The shards of a model, in order; together they contain every trained element once."""

    shards: tuple[Shard, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.nbytes for shard in self.shards)

    def split(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """One view per shard of a flat byte tensor of the whole layout."""
        return list(flat.split_with_sizes([shard.nbytes for shard in self.shards]))

    @classmethod
    def of(cls, model: nn.Module, optimizer: optim.Optimizer, servers: int) -> Layout:
        """The layout of a model with this optimizer, for a number of servers."""
        check_step(optimizer)
        tensors = _trained(model, optimizer)
        if not tensors:
            raise ValueError("the optimizer has no parameter with requires_grad=True")
        total = sum(tensor.nbytes for tensor in tensors)
        wanted = [total * number // servers for number in range(1, servers)]
        coupling = coupling_of(optimizer)
        if servers > 1 and coupling == "all":
            raise ValueError(
                f"a step of {named(optimizer)} needs all parameters together, and {servers} "
                "servers have a part of them each: use one server, or allreduce()"
            )
        cuts = _cuts(tensors, wanted, anywhere=coupling == "element")
        borders = [0, *cuts, total]
        if len(set(borders)) != len(borders):
            raise ValueError(
                f"{len(tensors)} tensors cannot be divided among {servers} servers, because some "
                "would be empty: use fewer servers"
            )
        shards = [
            Shard(number, tuple(_between(tensors, start, stop)), ())
            for number, (start, stop) in enumerate(pairwise(borders))
        ]
        last = shards[-1]
        shards[-1] = Shard(last.number, last.parameters, tuple(_buffers(model, last.nbytes)))
        return cls(tuple(shards))


@dataclass(frozen=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    group: int
    at: int

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def _trained(model: nn.Module, optimizer: optim.Optimizer) -> list[_Tensor]:
    """Every trained parameter once, with its group and its offset."""
    group_of = {
        id(parameter): number
        for number, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
    }
    chosen = [
        (name, parameter)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and id(parameter) in group_of
    ]
    chosen.sort(key=lambda item: -item[1].dtype.itemsize)
    tensors, at = [], 0
    for name, parameter in chosen:
        shape = tuple(parameter.shape)
        tensors.append(_Tensor(name, shape, parameter.dtype, group_of[id(parameter)], at))
        at += tensors[-1].nbytes
    return tensors


def _cuts(tensors: Iterable[_Tensor], wanted: list[int], *, anywhere: bool) -> list[int]:
    """The allowed split points that are nearest to the wanted ones, in order.

    With `anywhere`, a split point inside a tensor is allowed at a multiple of 64 bytes from the
    tensor's start, so that fragments stay aligned.
    """
    cuts: list[int] = []
    for border in wanted:
        best = last = cuts[-1] if cuts else 0
        for tensor in tensors:
            candidates = [tensor.at, tensor.at + tensor.nbytes]
            if anywhere and tensor.at < border < tensor.at + tensor.nbytes:
                candidates.append(tensor.at + (border - tensor.at) // 64 * 64)
            allowed = [at for at in candidates if at >= last]
            best = min([best, *allowed], key=lambda at: abs(at - border))
        cuts.append(best)
    return cuts


def _between(tensors: Iterable[_Tensor], start: int, stop: int) -> Iterable[Fragment]:
    for tensor in tensors:
        begin, end = max(start, tensor.at), min(stop, tensor.at + tensor.nbytes)
        if begin >= end:
            continue
        size = tensor.dtype.itemsize
        first, last = (begin - tensor.at) // size, (end - tensor.at) // size
        whole = last - first == prod(tensor.shape)
        yield Fragment(
            name=tensor.name,
            start=first,
            stop=last,
            shape=tensor.shape if whole else (last - first,),
            dtype=tensor.dtype,
            group=tensor.group,
            offset=begin - start,
        )


def _buffers(model: nn.Module, offset: int) -> Iterable[Fragment]:
    floating = [
        (name, buffer) for name, buffer in model.named_buffers() if buffer.is_floating_point()
    ]
    for name, buffer in sorted(floating, key=lambda item: -item[1].dtype.itemsize):
        if not buffer.numel():
            continue
        size = buffer.dtype.itemsize
        offset = -(-offset // size) * size
        yield Fragment(name, 0, buffer.numel(), tuple(buffer.shape), buffer.dtype, -1, offset)
        offset += buffer.numel() * size
