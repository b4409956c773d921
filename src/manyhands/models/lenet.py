"""A convolutional network for MNIST."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from torch import Tensor


class LeNet(nn.Module):
    """Two 5×5 convolutions (32, 64), each with ReLU and 2×2 pooling, then dense 1024, dense 10.

    Takes `[N, 1, 28, 28]`, gives logits `[N, 10]`. The convolutions do not pad, so the dense part
    sees 64×4×4 values; 1,111,946 parameters.

    Paper: LeCun, Bottou, Bengio, Haffner, "Gradient-Based Learning Applied to Document
    Recognition", 1998, in the wider form of TensorFlow's tutorials.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 1024),
            nn.ReLU(),
            nn.Linear(1024, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """The logits of each image."""
        logits: Tensor = self.classifier(self.features(images))
        return logits
