"""A fully connected network."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class MLP(nn.Module):
    """Dense layers with ReLU between them, on inputs of any shape, flattened.

    The default takes MNIST, `[N, 1, 28, 28]`, gives logits `[N, 10]` and has 203,530 parameters.

    Args:
        inputs: values in one flattened sample.
        hidden: the width of each layer but the last; empty for a linear model.
        outputs: number of outputs.
    """

    def __init__(
        self, inputs: int = 784, hidden: Sequence[int] = (256,), outputs: int = 10
    ) -> None:
        super().__init__()
        widths = [inputs, *hidden, outputs]
        if min(widths) < 1:
            raise ValueError(f"widths of layers must be at least 1, got {widths}")
        self.layers = nn.Sequential(nn.Flatten())
        for before, after in pairwise(widths):
            self.layers.extend([nn.Linear(before, after), nn.ReLU()])
        # The outputs are logits: there is no ReLU after the last layer.
        del self.layers[-1]

    def forward(self, inputs: Tensor) -> Tensor:
        """The logits of each sample."""
        logits: Tensor = self.layers(inputs)
        return logits
