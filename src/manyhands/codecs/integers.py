"""Codecs of integers of 8 and 4 bits, with a scale per block and stochastic rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from manyhands.codecs.kernels.sizes import Grid
from manyhands.codecs.quantised import Quantised, check_block


@dataclass(frozen=True, repr=False)
class Int8(Quantised):
    """Send numbers as integers of 8 bits, with a scale per block, rounded at random.

    q_i = ⌊x_i / s + u_i⌋ with s = max|x| / 127 over the block and u_i uniform in [0, 1); s·q_i is
    decoded. The error of a number is less than s, its mean is 0, and its variance at most s²/4. The
    random numbers are drawn from the seed.

    Use it as the first step below 16 bits. 1 byte per element and 4 per block: 1.004 bytes per
    element.

    Example: `allreduce(codec=int8())`

    Papers: Dettmers, 8-Bit Approximations for Parallelism in Deep Learning, ICLR 2016; stochastic
    rounding: Gupta et al., Deep Learning with Limited Numerical Precision, ICML 2015.
    """

    name: ClassVar[str] = "int8"
    bounded_error: ClassVar[bool] = True

    block: int = 1024
    """Elements that share a scale."""

    def __post_init__(self) -> None:
        check_block(self.block)

    @property
    def grid(self) -> Grid:
        """The levels and the length of the blocks."""
        return Grid(127, self.block)


@dataclass(frozen=True, repr=False)
class Int4(Quantised):
    """Send numbers as integers of 4 bits, with a scale per block, rounded at random.

    q_i = ⌊x_i / s + u_i⌋ with s = max|x| / 7 over the block and u_i uniform in [0, 1); s·q_i is
    decoded. The error has a mean of 0 and a variance of at most s²/4, 330 times that of `int8`: use
    it with error feedback (`feedback=true`) or for updates of many steps, as those of `diloco`.

    Half a byte per element and 4 bytes per block: 0.516 bytes per element.

    Example: `diloco(codec=int4(feedback=true))`

    Papers: Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and
    Encoding, NeurIPS 2017 (there with the norm of the block); for updates of many steps: Douillard
    et al., Streaming DiLoCo with Overlapping Communication, arXiv 2025.
    """

    name: ClassVar[str] = "int4"
    bounded_error: ClassVar[bool] = True

    block: int = 256
    """Elements that share a scale."""

    def __post_init__(self) -> None:
        check_block(self.block)

    @property
    def grid(self) -> Grid:
        """The levels and the length of the blocks."""
        return Grid(7, self.block)
