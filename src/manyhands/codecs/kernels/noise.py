"""Uniform random numbers of a seed, for stochastic rounding.

A number x is rounded to ⌊x + u⌋ with u uniform in [0, 1), whose mean is x. That holds for every
element by itself, so elements may share numbers u: one table is drawn, and each piece of a vector
uses a part of it that starts at a random place. Two elements share a number with a probability of
less than one in the length of a piece.
"""

from typing import Any

import numpy as np

from manyhands.codecs.kernels.arrays import Floats


def words(seed: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Random words of 64 bits: a pure function of the seed, the same on every machine."""
    return np.random.Philox(key=seed % 2**64).random_raw(count)


class Noise:
    """The numbers u + shift for the pieces of a vector.

    float32 holds u + shift exactly for shifts below 128: u is an odd multiple of 2⁻¹⁷ (of 2⁻³³ for
    float64), in the middle of its interval. Rounding is unbiased up to 2⁻¹⁶ of a step.

    Args:
        seed: the seed of all numbers.
        pieces: the number of pieces.
        longest: the elements of the longest piece.
        dtype: float32 or float64.
        shift: what is added to the numbers.
    """

    def __init__(
        self, seed: int, pieces: int, longest: int, dtype: np.dtype[Any], shift: int
    ) -> None:
        length = longest if pieces <= 1 else 2 * longest
        kind = np.dtype(np.uint32 if dtype.itemsize == 8 else np.uint16)
        count = -(-length * kind.itemsize // 8)
        drawn = words(seed, count + pieces)
        bits = 8 * kind.itemsize
        table = drawn[:count].view(kind)[:length].astype(dtype)
        table += 0.5
        table *= 2.0**-bits
        table += shift
        self._table: Floats = table
        self._starts = (drawn[count:] % np.uint64(length - longest + 1)).tolist()

    def of(self, piece: int, length: int) -> Floats:
        """The numbers for a piece of a vector."""
        start = self._starts[piece]
        return self._table[start : start + length]
