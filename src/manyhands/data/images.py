"""Datasets of labelled images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from manyhands.data.samples import Pair, Samples

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, repr=False, eq=False)
class Images(Samples):
    """Images `[channels, height, width]` in float32, normalised, each with a class in int64.

    They are stored as bytes, a quarter of the size, and converted to floats batch by batch.
    """

    mean: tuple[float, ...]
    """Mean of each channel, with pixels from 0 to 1."""
    std: tuple[float, ...]

    def __len__(self) -> int:
        return self.decoded.shapes[0][0]

    def _batch(self, rows: NDArray[np.int64]) -> Pair:
        pixels, classes = self._arrays
        inputs = torch.from_numpy(pixels.take(rows, axis=0)).to(torch.float32)
        inputs.sub_(_per_channel(self.mean)).div_(_per_channel(self.std))
        return inputs, torch.from_numpy(classes.take(rows)).to(torch.int64)


def _per_channel(values: tuple[float, ...]) -> torch.Tensor:
    # In units of a pixel's byte, which avoids a division of the batch by 255.
    bytes_ = [255 * value for value in values]
    return torch.tensor(bytes_, dtype=torch.float32, device="cpu").view(-1, 1, 1)
