"""Creation of a model in parts, with the same initial values as on a single worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from manyhands.engine.fake_tensors import is_fake, really
from manyhands.parameters.initial.deferred import first_values, on_meta, outline
from manyhands.parameters.initial.watching import Unmakeable
from manyhands.seeding import random_state, restore_random_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def make_model(make: Callable[[], nn.Module], device: torch.device) -> nn.Module:
    """The model on its device."""
    if is_fake():
        return _make_fake(make, device)
    return make().to(device)


def make_in_parts(
    make: Callable[[], nn.Module], spread: Callable[[nn.Module], None], device: torch.device
) -> nn.Module:
    """The model after `spread`, on its device.

    Random generators have been seeded with the job's seed, and end in the same state as after the
    creation of the whole model. If the initial values need the whole model at once, it is created
    whole and distributed afterwards.
    """
    if is_fake():
        return _make_fake(make, device, spread)
    from manyhands.engine.tensors import own, own_part  # noqa: PLC0415 - loads DTensor

    state = random_state()
    try:
        sketch = outline(make)
        model = sketch.model
        spread(model)
        as_dtensor = dict(_named(model))
        values = first_values(
            make, sketch.numbers, lambda name, whole: own_part(as_dtensor[name], whole)
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


def _make_fake(
    make: Callable[[], nn.Module],
    device: torch.device,
    spread: Callable[[nn.Module], None] = lambda _: None,
    here: Callable[[str], bool] = lambda _: True,
) -> nn.Module:
    """The model with fake parameters on the device; those of other workers stay on meta."""
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
    """The model with the named parameters and buffers on the device; others stay on meta.

    As with `make_in_parts`, the values are the same as on a single worker.
    """
    if is_fake():
        return _make_fake(make, device, here=here)
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
    """Replace a parameter or buffer by a tensor, under all of its names in the model."""
    old = getattr(module, name)
    new = nn.Parameter(value, old.requires_grad) if isinstance(old, nn.Parameter) else value
    for one in model.modules():
        for tensors in (one._parameters, one._buffers):
            for key in [key for key, tensor in tensors.items() if tensor is old]:
                # By attribute: recurrent layers keep their own list of weights.
                setattr(one, key, new)


def aliases(model: nn.Module) -> dict[str, str]:
    """Further names of tied parameters and buffers, each with the first name."""
    first: dict[int, str] = {}
    again: dict[str, str] = {}
    for named in (model.named_parameters, model.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            known = first.setdefault(id(tensor), name)
            if known != name:
                again[name] = known
    return again


def tie(model: nn.Module, again: Mapping[str, str]) -> None:
    """Tie tensors again, because `to_empty` creates one for each name."""
    for name, first in again.items():
        path, _, last = name.rpartition(".")
        other, _, own = first.rpartition(".")
        setattr(model.get_submodule(path), last, getattr(model.get_submodule(other), own))


def _named(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
