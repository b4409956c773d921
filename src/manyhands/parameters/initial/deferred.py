"""Creation of a model that is larger than memory, with the initial values of the whole model.

A layer allocates uninitialised memory (`torch.empty`) and then fills it, mostly at random. A worker
that holds only parts of all layers tracks that memory: when the parameters so far take too much of
it, the worker keeps its own part of the least recently used one, and frees the rest. So all workers
draw the same random numbers in the same order as a worker that creates the whole model, each holds
its part of the same values, and none ever holds much more. A model that is created on the meta
device and filled later would begin with other values (`docs/decisions/0025-made-in-parts.md`).

Which parts are its own is known only from the model's structure. So a model is created twice: first
for its structure, then for its values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from manyhands.parameters.initial.trimming import trim
from manyhands.parameters.initial.watching import Pinning, Unmakeable, Watching
from manyhands.seeding import random_state, restore_random_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from manyhands.parameters.initial.watching import Keep

HELD = 64 * 1024 * 1024
"""Bytes of whole parameters that a worker holds while it creates a model, or three times the
largest one, whose initialisation may need temporary memory."""


@dataclass(frozen=True, eq=False)
class Outline:
    """A model without most of its values."""

    model: nn.Module
    """The model on the meta device, except for tensors that were never uninitialised memory."""
    numbers: Mapping[str, int]
    """By name, for parameters and buffers on meta: the number of the allocation."""


def outline(make: Callable[[], nn.Module], held: int = HELD) -> Outline:
    """A model's structure; random generators keep their state.

    Raises:
        Unmakeable: the model's initial values cannot be created in parts.
    """
    before = random_state()
    model, mode = _make({}, make, held)
    restore_random_state(before)
    return _outline(model, mode)


def outline_or_whole(make: Callable[[], nn.Module], held: int = HELD) -> nn.Module | Outline:
    """The model with its values if it is small enough to fit in memory, else its structure.

    An outline has only the structure: values other than parameters and buffers may be missing.

    Random generators end in the same state as after the creation of the whole model; with an
    outline, they keep their state.

    Raises:
        Unmakeable: the model's initial values cannot be created in parts.
    """
    before = random_state()
    model, mode = _make({}, make, held, everything=True)
    if not mode.has_let_go:
        return model
    restore_random_state(before)
    return _outline(model, mode)


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    """The model on the meta device; random generators keep their state."""
    before = random_state()
    with torch.device("meta"):
        model = make()
    restore_random_state(before)
    return model


def first_values(
    make: Callable[[], nn.Module],
    numbers: Mapping[str, int],
    keep: Callable[[str, torch.Tensor], torch.Tensor],
    held: int = HELD,
) -> dict[str, torch.Tensor]:
    """This worker's parts of the initial parameters and buffers, by name.

    Args:
        make: creates the model; random generators are in the state for the whole model.
        numbers: the numbers of the outline.
        keep: returns the part to keep of the whole tensor of that name.
        held: bytes of whole parameters that may be in memory at a time.

    Raises:
        Unmakeable: the model's initial values cannot be created in parts.
    """
    model, mode = _make(
        {number: _keeper(name, _cloning(keep)) for name, number in numbers.items()}, make, held
    )
    return _kept(model, mode, numbers, _cloning(keep))


def place_values(
    make: Callable[[], nn.Module],
    numbers: Mapping[str, int],
    place: Callable[[str, torch.Tensor], torch.Tensor],
    held: int = HELD,
) -> dict[str, torch.Tensor]:
    """As `first_values`, into memory that is allocated already.

    Args:
        make: as for `first_values`.
        numbers: the numbers of the outline from `outline_or_whole`.
        place: copies the part to keep of the whole tensor of that name to its destination, and
            returns the destination. It may be called again for a name: the last values count.
        held: as for `first_values`.

    Raises:
        Unmakeable: the model's initial values cannot be created in parts.
    """
    keep = {number: _keeper(name, place) for name, number in numbers.items()}
    model, mode = _make(keep, make, held, everything=True)
    kept = _kept(model, mode, numbers, place)
    del model
    trim()
    return kept


def _kept(
    model: nn.Module,
    mode: Watching,
    numbers: Mapping[str, int],
    place: Callable[[str, torch.Tensor], torch.Tensor],
) -> dict[str, torch.Tensor]:
    """The parts that were kept of a model; tensors that were not tracked are added now."""
    if _numbers(model, mode) != dict(numbers):
        raise Unmakeable("the model has another structure when it is created again")
    mode.release_all()
    kept = {name: mode.parts[number] for name, number in numbers.items()}
    for name, tensor in _named(model):
        if name not in numbers:
            kept[name] = place(name, tensor.detach())
    return kept


def _make(
    keep: Mapping[int, Keep],
    make: Callable[[], nn.Module],
    held: int,
    *,
    everything: bool = False,
) -> tuple[nn.Module, Watching]:
    mode = Watching(keep, held, everything=everything)
    with mode, Pinning(mode):
        return make(), mode


def _outline(model: nn.Module, mode: Watching) -> Outline:
    numbers = _numbers(model, mode)
    _forget(model, mode)
    trim()
    return Outline(model, numbers)


def _numbers(model: nn.Module, mode: Watching) -> dict[str, int]:
    """By name, the allocation of each parameter and buffer that was uninitialised memory.

    Raises:
        Unmakeable: a parameter is only a part or another view of its allocation.
    """
    numbers: dict[str, int] = {}
    taken: set[int] = set()
    for name, tensor in _named(model):
        number = mode.number(tensor)
        if number is None:
            continue
        if number in taken or not mode.is_all_of_its_memory(tensor):
            raise Unmakeable(f"{name} is a view of a larger allocation")
        numbers[name] = number
        taken.add(number)
    return numbers


def _forget(model: nn.Module, mode: Watching) -> None:
    """Replace freed tensors by meta tensors."""
    seen: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in list(tensors.items()):
                if tensor is None or mode.number(tensor) is None:
                    continue
                if id(tensor) not in seen:
                    seen[id(tensor)] = _absent(tensor)
                # By attribute: recurrent layers keep their own list of weights.
                setattr(module, name, seen[id(tensor)])


def _absent(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=torch.device("meta")
    )
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def _cloning(
    keep: Callable[[str, torch.Tensor], torch.Tensor],
) -> Callable[[str, torch.Tensor], torch.Tensor]:
    return lambda name, whole: keep(name, whole).clone()


def _keeper(name: str, keep: Callable[[str, torch.Tensor], torch.Tensor]) -> Keep:
    return lambda whole: keep(name, whole)


def _named(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
