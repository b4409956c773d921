"""Which parts of a model are taken as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def units(model: nn.Module) -> list[nn.Module]:
    """The modules that are called as a whole, in the order in which the model names them.

    The model and whatever contains a list or a sequence of modules is opened, a block of such a
    list is not: what repeats is a unit. A model without any is one unit itself.
    """
    return [module for _, module in named_units(model)] or [model]


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
