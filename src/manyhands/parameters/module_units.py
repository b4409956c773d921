"""Units of a model: the blocks that are sharded, gathered or recomputed as a whole."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def units(model: nn.Module) -> list[nn.Module]:
    """The units of a model, in the order of its modules.

    The model, and modules that contain a list or a sequence of modules, are opened; the elements of
    such a list are units. A model without any is one unit itself.
    """
    return [module for _, module in named_units(model)] or [model]


def separate_units(model: nn.Module) -> list[nn.Module]:
    """The units that share no parameter with the rest of the model.

    A parameter that is gathered and freed with its unit must belong to one unit only. Units that
    share a parameter (tied embeddings, a layer that two blocks use) are therefore left to the model
    as a whole. A model without separate units is one unit itself.
    """
    return [module for _, module in named_separate_units(model)] or [model]


def named_separate_units(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """As `separate_units`, with names; empty if the model is one unit."""
    found = list(named_units(model))
    inside = {id(module) for _, unit in found for module in unit.modules()}
    rest = {
        id(parameter)
        for module in model.modules()
        if id(module) not in inside
        for parameter in module.parameters(recurse=False)
    }
    held = [{id(parameter) for parameter in unit.parameters()} for _, unit in found]
    times = Counter(number for some in (rest, *held) for number in some)
    return [one for one, mine in zip(found, held, strict=True) if all(times[n] == 1 for n in mine)]


def named_units(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The units with their names."""
    for name, child in module.named_children():
        if not any(True for _ in child.parameters()):
            continue
        path = f"{prefix}{name}"
        repeats = any(isinstance(inner, nn.ModuleList) for inner in child.modules())
        if isinstance(child, _CONTAINERS) or (repeats and not isinstance(module, _CONTAINERS)):
            yield from named_units(child, f"{path}.")
        else:
            yield path, child
