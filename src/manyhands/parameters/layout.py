"""Which part of which tensor lies where.

The trained parameters of a model, in one order, are one stretch of bytes; servers own consecutive
parts of it. A worker keeps its parameters in such a stretch too, so what a server sends is received
in place and what a worker pushes is sent from where it lies.

An optimizer that treats every element by itself (SGD, Adam, …) may have a tensor cut between two
servers. Any other may need a whole tensor, so shards then end at tensor borders.

Tied parameters appear once. Frozen ones, and those that no parameter group holds, never change and
are left out. Tensors are ordered by the size of their elements, largest first, so that every one is
aligned whatever types are mixed. Floating buffers (batch-norm statistics) follow the parameters of
the last shard; they are averaged, not trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import optim

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

ELEMENTWISE = (
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.Adagrad,
    optim.Adadelta,
    optim.Adamax,
    optim.NAdam,
    optim.RAdam,
    optim.RMSprop,
    optim.Rprop,
    optim.ASGD,
)
"""Optimizers whose step is a function of each element alone. A subclass may be anything else."""


_LINE = 4 << 20
"""Bytes of the parameters that an optimizer treats at once."""


@dataclass(frozen=True)
class Fragment:
    """A part of a tensor, or all of it."""

    name: str
    """The parameter's or buffer's."""
    start: int
    """Its first element in the flattened tensor, and"""
    stop: int
    """the one after its last."""
    shape: tuple[int, ...]
    """The tensor's own shape if it is whole, else a line."""
    dtype: torch.dtype
    group: int
    """The optimizer's parameter group; −1 for a buffer."""
    offset: int
    """Where it lies in its shard, in bytes."""

    @property
    def nbytes(self) -> int:
        """Its size."""
        return (self.stop - self.start) * self.dtype.itemsize

    def bytes(self, shard: torch.Tensor) -> torch.Tensor:
        """This fragment's part of the bytes of its shard."""
        return shard[self.offset : self.offset + self.nbytes]

    def view(self, shard: torch.Tensor) -> torch.Tensor:
        """This fragment in the bytes of its shard, in its own type and shape.

        A parameter is aligned wherever its shard lies. A buffer is so in a shard that has its own
        memory, and need not be where the shard is a part of a whole stretch: see `bytes`.
        """
        flat = self.bytes(shard).view(self.dtype)
        return flat if len(self.shape) == 1 else flat.view(self.shape)


@dataclass(frozen=True)
class Shard:
    """What one server owns."""

    number: int
    parameters: tuple[Fragment, ...]
    buffers: tuple[Fragment, ...]

    @cached_property
    def nbytes(self) -> int:
        """Bytes of its parameters and buffers."""
        return max(piece.offset + piece.nbytes for piece in (*self.parameters, *self.buffers))

    @cached_property
    def lines(self) -> tuple[Fragment, ...]:
        """The parameters as lines, those of one type and group that lie side by side in one.

        A long one is cut: what a step computes in between then stays small and in the cache.
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
    def stretches(self) -> tuple[Fragment, ...]:
        """The parameters as lines, those of one type in one: for what is done to each element.

        A model of many small tensors is then one sum and not many.
        """
        lines = []
        for dtype, pieces in groupby(self.parameters, key=lambda piece: piece.dtype):
            first, *others = pieces
            size = sum(piece.stop - piece.start for piece in (first, *others))
            lines.append(Fragment("", 0, size, (size,), dtype, -1, first.offset))
        return tuple(lines)


def _cut(line: Fragment) -> Iterable[Fragment]:
    """A line in parts of at most `_LINE` bytes."""
    width = line.dtype.itemsize
    for start in range(0, line.stop, _LINE // width):
        size = min(_LINE // width, line.stop - start)
        at = line.offset + start * width
        yield Fragment("", 0, size, (size,), line.dtype, line.group, at)


def _follows(line: Fragment, piece: Fragment) -> bool:
    """Whether a fragment continues a line."""
    alike = (line.dtype, line.group) == (piece.dtype, piece.group)
    return alike and line.offset + line.nbytes == piece.offset


@dataclass(frozen=True)
class Layout:
    """The shards of a model, in order; together they are every trained element once."""

    shards: tuple[Shard, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.nbytes for shard in self.shards)

    def split(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """A flat byte tensor of the whole layout, as one view per shard."""
        return list(flat.split_with_sizes([shard.nbytes for shard in self.shards]))

    @classmethod
    def of(cls, model: nn.Module, optimizer: optim.Optimizer, servers: int) -> Layout:
        """The layout of a model whose optimizer is given, over so many servers."""
        if isinstance(optimizer, optim.LBFGS):
            raise TypeError(
                "LBFGS needs all parameters and several evaluations of the loss at once; "
                "servers that hold a part each cannot run it. Use SGD or Adam, or allreduce()"
            )
        tensors = _trained(model, optimizer)
        if not tensors:
            raise ValueError("the optimizer holds no parameter that is trained")
        total = sum(tensor.nbytes for tensor in tensors)
        wanted = [total * number // servers for number in range(1, servers)]
        cuts = _cuts(tensors, wanted, anywhere=type(optimizer) in ELEMENTWISE)
        borders = [0, *cuts, total]
        if len(set(borders)) != len(borders):
            raise ValueError(
                f"{len(tensors)} tensors cannot be dealt to {servers} servers: some would hold "
                "nothing. Use fewer servers"
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
    """Every trained parameter once, with its group and its place in the stretch."""
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
    """The allowed borders that are nearest to the wanted ones, none before the one before it.

    A border inside a tensor is allowed only `anywhere`, at a multiple of 64 bytes from the
    tensor's start, so that the fragments stay aligned.
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
