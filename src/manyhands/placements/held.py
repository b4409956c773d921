"""The tensors of a model that one worker has, by their names in the whole model.

Checkpoints are stored from these and loaded into them, under any placement: a worker stores the
parts that it has, and reads from whole tensors the parts that it needs. Parts have names and not
ranks, so that another strategy and another number of workers can continue from them
(`docs/decisions/0073-checkpoints.md`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from manyhands.engine.tensors import as_dtensor, box, is_divided, is_first_copy, own, own_part

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence


@dataclass(frozen=True, eq=False)
class HeldTensor:
    """A parameter or buffer of the whole model, or a part of it, that this worker has."""

    name: str
    """Its name in the whole model's `state_dict`."""
    tensor: torch.Tensor
    """The tensor of this worker; a DTensor if it is one of several parts."""
    stores: bool
    """Whether this worker stores it; of the workers with the same part, one does."""

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return tuple(self.tensor.shape)

    @property
    def begin(self) -> tuple[int, ...] | None:
        """Where this worker's part begins; None if its part is no box of the whole tensor."""
        return box(self.tensor)

    def cut(self, whole: torch.Tensor) -> torch.Tensor:
        """This worker's part of a whole tensor."""
        return own_part(self.tensor, whole)

    @torch.no_grad()
    def load(self, whole: torch.Tensor) -> None:
        """Copy this worker's part of a whole tensor to where it is."""
        own(self.tensor).copy_(self.cut(whole))


@dataclass(frozen=True, eq=False)
class SteppedTensor:
    """A parameter, or a part of one, that this worker's optimizer steps."""

    name: str
    key: torch.Tensor
    """The tensor in the optimizer's groups, by which its state is found."""
    whole_shape: tuple[int, ...]
    begin: tuple[int, ...] | None
    """Where the part begins; None if it is no box of the whole tensor."""
    stores: bool
    like: torch.Tensor
    """A tensor that is divided in the same way."""
    cut: Callable[[torch.Tensor], torch.Tensor]
    """Returns this worker's part of a whole tensor, in the form that the optimizer has."""

    @property
    def is_whole(self) -> bool:
        """Whether the part is the whole tensor."""
        return tuple(own(self.key).shape) == self.whole_shape


def held_by_all(
    named: Mapping[str, torch.Tensor], aliases: Collection[str], rank: int, workers: int
) -> list[HeldTensor]:
    """The tensors of a model that every worker has, whole or in part.

    Args:
        named: the model's `state_dict`, with the parameters themselves.
        aliases: names in it that are others' names too.
        rank: this worker's rank.
        workers: the number of workers.
    """
    chosen = {name: tensor for name, tensor in named.items() if name not in aliases}
    copied = [name for name, tensor in chosen.items() if not is_divided(tensor)]
    storing = share_out([chosen[name].nbytes for name in copied], workers)
    mine = {name for name, worker in zip(copied, storing, strict=True) if worker == rank}
    return [
        HeldTensor(name, tensor, is_first_copy(tensor) if is_divided(tensor) else name in mine)
        for name, tensor in chosen.items()
    ]


def stepped(
    held: Sequence[HeldTensor], keys: Mapping[int, torch.Tensor] | None = None
) -> list[SteppedTensor]:
    """The tensors that an optimizer steps, which are divided as the parameters are.

    Args:
        held: the worker's tensors.
        keys: by `id` of a parameter, what the optimizer has in its place.
    """
    return [
        SteppedTensor(
            one.name,
            key,
            one.whole_shape,
            one.begin,
            one.stores,
            one.tensor,
            _cutter(one.tensor, is_laid=key is one.tensor),
        )
        for one in held
        for key in [(keys or {}).get(id(one.tensor), one.tensor)]
    ]


def _cutter(parameter: torch.Tensor, *, is_laid: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that takes a worker's part; as a DTensor, if the optimizer steps one."""

    def cut(whole: torch.Tensor) -> torch.Tensor:
        part = own_part(parameter, whole).clone()
        return as_dtensor(part, parameter) if is_laid else part

    return cut


def share_out(sizes: Sequence[int], workers: int) -> list[int]:
    """For tensors that every worker has: which worker stores each, so that all store as much.

    >>> share_out([4, 3, 2, 2, 1], 2)
    [0, 1, 1, 0, 1]
    """
    loads = [0] * workers
    chosen = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        worker = loads.index(min(loads))
        chosen[index] = worker
        loads[worker] += sizes[index]
    return chosen
