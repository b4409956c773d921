"""Deep residual networks for images, with normalisation before the convolutions."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

_EPSILON = 1.001e-5
"""Keras' for these networks."""


class ResNetV2(nn.Sequential):
    """A residual network of bottlenecks: a stem, four stages of blocks, a classifier.

    A block computes `y = x + f(relu(norm(x)))`, so there is an identity path from the first block
    to the last. At the beginning of a stage, a convolution in the shortcut changes the number of
    channels; the last block of a stage halves the image. The parameters are the same as in Keras'
    applications.

    Takes `[N, 3, height, width]` from 32×32 upwards, gives logits `[N, classes]`.

    Args:
        blocks: number of blocks of each stage.
        classes: number of logits.

    Paper: He, Zhang, Ren, Sun, "Identity Mappings in Deep Residual Networks", 2016.
    """

    def __init__(self, blocks: Sequence[int], classes: int) -> None:
        layers: list[tuple[str, nn.Module]] = [("stem", _stem())]
        channels, width = 64, 64
        for stage, count in enumerate(blocks):
            last = 1 if stage == len(blocks) - 1 else 2
            for number, block in enumerate(_stage(channels, width, count, last)):
                layers.append((f"stage{stage + 1}_block{number + 1}", block))
            channels, width = 4 * width, 2 * width
        head = nn.Sequential(
            _norm(channels), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
        )
        super().__init__(OrderedDict([*layers, ("head", head)]))


class ResNet50V2(ResNetV2):
    """3, 4, 6 and 3 blocks; 25,613,800 parameters with 1,000 classes.

    Running means and variances of the normalisation are counted, as Keras does.
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__((3, 4, 6, 3), classes)


class ResNet101V2(ResNetV2):
    """3, 4, 23 and 3 blocks; 44,675,560 parameters with 1,000 classes, counted in the same way."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__((3, 4, 23, 3), classes)


class ResNet152V2(ResNetV2):
    """3, 8, 36 and 3 blocks; 60,380,648 parameters with 1,000 classes, counted in the same way."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__((3, 8, 36, 3), classes)


class _Block(nn.Module):
    """`shortcut + f(relu(norm(x)))`, with f three convolutions: narrow, 3×3, wide."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.before = _norm(channels)
        self.residual = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            _norm(width),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            _norm(width),
            nn.Conv2d(width, outputs, 1),
        )
        # A shortcut that keeps its channels takes the input before normalisation.
        self.widen = nn.Conv2d(channels, outputs, 1, stride) if channels != outputs else None
        self.subsample = nn.MaxPool2d(1, stride) if stride > 1 else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        ready = self.before(inputs)
        shortcut = self.subsample(inputs) if self.widen is None else self.widen(ready)
        total: Tensor = shortcut + self.residual(ready)
        return total


def _stem() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2, padding=3), nn.MaxPool2d(3, stride=2, padding=1)
    )


def _stage(channels: int, width: int, count: int, stride: int) -> Iterator[_Block]:
    for number in range(count):
        yield _Block(channels, width, stride if number == count - 1 else 1)
        channels = 4 * width


def _norm(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(channels, eps=_EPSILON, momentum=0.01), nn.ReLU())
