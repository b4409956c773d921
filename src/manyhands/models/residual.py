"""Small residual networks for CIFAR-10."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F  # noqa: N812 - F is what PyTorch's own documentation writes
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor


class ResidualNetwork(nn.Module):
    """A residual network of `depth = 6n + 2` layers: one convolution, 3 stages of n blocks, dense.

    The stages work on maps of 32×32, 16×16 and 8×8 with `width`, 2 `width` and 4 `width` channels,
    with batch normalisation after every convolution. A block computes `y = relu(x + f(x))`, with f
    two 3×3 convolutions; where a stage changes the shape, x is subsampled and padded with zero
    channels, which takes no parameters (the paper's option A).

    Takes `[N, 3, 32, 32]`, gives logits `[N, classes]`. 75,290 parameters at depth 8, 269,722 at
    depth 20.

    Args:
        depth: 8, 14, 20, 26 and so on.
        classes: number of logits.
        width: channels of the first stage.

    Paper: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", 2015, section 4.2.
    """

    def __init__(self, depth: int = 8, classes: int = 10, width: int = 16) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        if blocks < 1 or rest:
            raise ValueError(f"depth must be 6n + 2 (8, 14, 20, 26, ...), got {depth}")
        self.stem = nn.Sequential(_convolution(3, width), nn.BatchNorm2d(width), nn.ReLU())
        self.stages = nn.Sequential(
            _stage(width, width, blocks, stride=1),
            _stage(width, 2 * width, blocks, stride=2),
            _stage(2 * width, 4 * width, blocks, stride=2),
        )
        self.classifier = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes)
        )

    def forward(self, images: Tensor) -> Tensor:
        """The logits of each image."""
        logits: Tensor = self.classifier(self.stages(self.stem(images)))
        return logits


class _Block(nn.Module):
    """`relu(x + f(x))`, with f two convolutions, the first of which may shrink the map."""

    def __init__(self, channels: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _convolution(channels, outputs, stride),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            _convolution(outputs, outputs),
            nn.BatchNorm2d(outputs),
        )
        self.stride = stride
        self.extra = outputs - channels

    def forward(self, inputs: Tensor) -> Tensor:
        kept = inputs[:, :, :: self.stride, :: self.stride]
        # F.pad counts dims from the last: columns, rows, then channels.
        shortcut = F.pad(kept, (0, 0, 0, 0, 0, self.extra))
        return F.relu(shortcut + self.residual(inputs))


def _stage(channels: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    first = _Block(channels, outputs, stride)
    return nn.Sequential(first, *(_Block(outputs, outputs, stride=1) for _ in range(blocks - 1)))


def _convolution(channels: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    # Without a bias, which the following normalisation would subtract again.
    layer = nn.Conv2d(channels, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
