"""Sizes of a model's parameters, for forecasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.costs import TensorSize
from manyhands.parameters.module_units import named_separate_units

if TYPE_CHECKING:
    from torch import nn


def sizes(model: nn.Module) -> list[TensorSize]:
    """The size of every parameter, with the unit that it belongs to; tied ones only once."""
    owner = {
        f"{path}.{name}": path
        for path, module in named_separate_units(model)
        for name, _ in module.named_parameters()
    }
    return [
        TensorSize(
            name,
            parameter.numel() * parameter.element_size(),
            parameter.requires_grad,
            rows=parameter.shape[0] if parameter.dim() else 1,
            unit=owner.get(name, ""),
            itemsize=parameter.element_size(),
        )
        for name, parameter in model.named_parameters()
    ]
