"""A network that sleeps instead of computing, to measure the overhead around it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor


class Paced(nn.Sequential):
    """Layers that sleep for a given time in the forward and in each half of the backward.

    Sleeping needs no core, so many workers can be measured on few cores. The layers are preceded by
    a small one, because autograd computes the gradient of inputs only if a previous layer needs it.

    Takes and returns `[N, width]`.

    Args:
        layers: number of layers.
        forward: seconds of each layer's forward.
        input_gradient: seconds of the gradient for the previous layer.
        weight_gradient: seconds of the gradients of the layer's parameters.
        width: width of the layers.
    """

    def __init__(
        self,
        layers: int,
        forward: float,
        input_gradient: float,
        weight_gradient: float,
        width: int = 8,
    ) -> None:
        paces = (forward, input_gradient, weight_gradient)
        super().__init__(
            nn.Linear(width, width), *(PacedLayer(width, *paces) for _ in range(layers))
        )


class PacedLayer(nn.Module):
    """`x + w` after a sleep; in the backward it sleeps once for each of the two."""

    def __init__(
        self, width: int, forward: float, input_gradient: float, weight_gradient: float
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.paces = (forward, input_gradient, weight_gradient)

    def forward(self, inputs: Tensor) -> Tensor:
        """The sum, after the sleep."""
        forward, input_gradient, weight_gradient = self.paces
        time.sleep(forward)
        given: Tensor = late(inputs, input_gradient)
        own: Tensor = late(self.weight, weight_gradient)
        return given + own


class _Late(torch.autograd.Function):
    """The identity, whose backward sleeps."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


late: Any = _Late.apply
"""Returns a tensor whose gradient is delayed by some seconds."""
