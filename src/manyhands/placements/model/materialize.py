"""Making a model in parts, with the values that one worker would give the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from manyhands.engine.fake_tensors import is_imagined, really
from manyhands.engine.tensors import own, own_part
from manyhands.parameters.initial.deferred import first_values, on_meta, outline
from manyhands.parameters.initial.watching import Unmakeable
from manyhands.seeding import random_state, restore_random_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def make_whole(make: Callable[[], nn.Module], device: torch.device) -> nn.Module:
    """A model on its device."""
    if is_imagined():
        return _imagine(make, device)
    return make().to(device)


def make_in_parts(
    make: Callable[[], nn.Module], spread: Callable[[nn.Module], None], device: torch.device
) -> nn.Module:
    """A model after `spread`, on its device.

    The random source stands at the job's seed, and stands afterwards where it would if the whole
    model had been made. If the model's first values need all of it at once, it is made whole, and
    spread then.
    """
    if is_imagined():
        return _imagine(make, device, spread)
    state = random_state()
    try:
        sketch = outline(make)
        model = sketch.model
        spread(model)
        laid_out = dict(_named(model))
        values = first_values(
            make, sketch.numbers, lambda name, whole: own_part(laid_out[name], whole)
        )
    except Unmakeable:
        restore_random_state(state)
        model = make().to(device)
        spread(model)
        return model
    again = aliases(model)
    model.to_empty(device=device)
    tie(model, again)
    with torch.no_grad():
        for name, tensor in _named(model):
            own(tensor).copy_(values.pop(name))
    return model


def _imagine(
    make: Callable[[], nn.Module],
    device: torch.device,
    spread: Callable[[nn.Module], None] = lambda _: None,
    here: Callable[[str], bool] = lambda _: True,
) -> nn.Module:
    """A model whose parameters have a place and no content; those that are not here have none."""
    with really():
        model = on_meta(make)
        spread(model)
    for name, tensor in filter(lambda named: here(named[0]), list(_named(model))):
        path, _, last = name.rpartition(".")
        _replace(model, model.get_submodule(path), last, torch.empty_like(tensor, device=device))
    return model


def make_some(
    make: Callable[[], nn.Module], here: Callable[[str], bool], device: torch.device
) -> nn.Module:
    """A model with the parameters and buffers that shall be here, by name; others are not there.

    As with `make_in_parts`, the values are those that one worker would give the whole model.
    """
    if is_imagined():
        return _imagine(make, device, here=here)
    state = random_state()
    try:
        sketch = outline(make)
        model = sketch.model
        values = first_values(
            make, sketch.numbers, lambda name, whole: whole if here(name) else whole[:0]
        )
    except Unmakeable:
        restore_random_state(state)
        model = make()
        values = {name: tensor.detach() for name, tensor in _named(model)}
    for name, tensor in list(_named(model)):
        path, _, last = name.rpartition(".")
        value = values.pop(name)
        new = value.to(device) if here(name) else torch.empty_like(tensor, device="meta")
        _replace(model, model.get_submodule(path), last, new)
    return model


def _replace(model: nn.Module, module: nn.Module, name: str, value: torch.Tensor) -> None:
    """Put a tensor in the place of a parameter or buffer, wherever the model has it."""
    old = getattr(module, name)
    new = nn.Parameter(value, old.requires_grad) if isinstance(old, nn.Parameter) else value
    for one in model.modules():
        for tensors in (one._parameters, one._buffers):
            for key in [key for key, tensor in tensors.items() if tensor is old]:
                # By attribute: recurrent layers keep a list of their own.
                setattr(one, key, new)


def aliases(model: nn.Module) -> dict[str, str]:
    """Names under which a parameter or buffer appears again, each with its first name."""
    first: dict[int, str] = {}
    again: dict[str, str] = {}
    for named in (model.named_parameters, model.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            known = first.setdefault(id(tensor), name)
            if known != name:
                again[name] = known
    return again


def tie(model: nn.Module, again: Mapping[str, str]) -> None:
    """Have one tensor under several names again: `to_empty` makes one for each of them."""
    for name, first in again.items():
        path, _, last = name.rpartition(".")
        other, _, own = first.rpartition(".")
        setattr(model.get_submodule(path), last, getattr(model.get_submodule(other), own))


def _named(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
