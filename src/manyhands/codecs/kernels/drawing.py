"""Random positions of a seed."""

import numpy as np

from manyhands.codecs.kernels.arrays import Positions
from manyhands.codecs.kernels.noise import words


def random_positions(seed: int, count: int, size: int) -> tuple[Positions, Positions]:
    """One position in each of `count` equal parts of a vector, and the lengths of these parts.

    Lengths differ by at most 1. Every position of a part has the same probability.
    """
    bounds = np.arange(count + 1) * size // max(1, count)
    widths = np.diff(bounds)
    drawn = (words(seed, count) >> np.uint64(32)) * widths.astype(np.uint64) >> np.uint64(32)
    return bounds[:-1] + drawn.astype(np.int64), widths
