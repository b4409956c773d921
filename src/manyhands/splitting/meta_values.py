"""Replacement of tensors in a model on the meta device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


def fill(model: nn.Module, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Replace tensors of the model, by name; return the old ones.

    A tied tensor is replaced under all of its names.
    """
    named = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    names = {id(tensor): name for name, tensor in named.items()}
    new: dict[str, torch.Tensor] = {}
    for name, value in values.items():
        learns = named[name].requires_grad
        is_parameter = isinstance(named[name], nn.Parameter)
        new[name] = nn.Parameter(value, requires_grad=learns) if is_parameter else value
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for key, tensor in tensors.items():
                if tensor is not None and names[id(tensor)] in new:
                    tensors[key] = new[names[id(tensor)]]  # type: ignore[assignment]
    return {name: named[name] for name in values}
