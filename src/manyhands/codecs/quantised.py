"""Codecs that round every number to a few levels per block, at random; and QSGD."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from manyhands.codecs.codec import Codec
from manyhands.codecs.kernels.sizes import Grid, block_bytes

if TYPE_CHECKING:
    import torch


class Quantised(Codec):
    """Every number is rounded to a multiple of its block's scale, up or down at random.

    A number between two levels goes to the upper one with the probability of its distance from the
    lower one, so the mean of what is decoded is the number itself. Vectors with numbers that are
    NaN or infinite are refused. Blocks whose largest number is below 10⁻³⁶ are sent as zeros.
    """

    biased: ClassVar[bool] = False

    @property
    @abstractmethod
    def grid(self) -> Grid:
        """The levels and the length of the blocks."""

    def encode(self, vector: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """The scales of all blocks, then the codes of all elements."""
        from manyhands.codecs.kernels import quantising  # noqa: PLC0415 - loads torch

        return quantising.encode(vector, self.grid, seed, None)

    def encode_rest(self, vector: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """Encode and subtract piece by piece, while a piece is in the cache."""
        from manyhands.codecs.kernels import quantising  # noqa: PLC0415

        return quantising.encode(vector, self.grid, seed, vector)

    def decode(self, payload: torch.Tensor, into: torch.Tensor) -> None:
        """Multiply the codes with the scales."""
        from manyhands.codecs.kernels import quantising  # noqa: PLC0415

        quantising.decode(payload, self.grid, into)

    def wire_bytes(self, size: int, itemsize: int = 4) -> int:
        """A code per element and a scale per block (of 8 bytes for float64, else of 4)."""
        grid = self.grid
        return block_bytes(size, grid.block, grid.per_byte, itemsize)


def check_block(block: int) -> None:
    """Raise ValueError for a block without elements."""
    if block < 1:
        raise ValueError(f"block must be at least 1 element, got {block}")


@dataclass(frozen=True, repr=False)
class Qsgd(Quantised):
    """Round numbers to `levels` levels below the Euclidean norm of their block, at random.

    Q(x_i) = ‖x‖₂ / s · sign(x_i) · ξ_i, where ξ_i is one of the two integers around s·|x_i|/‖x‖₂
    and has it as its mean. With few levels most numbers of a block become 0: the variance is at
    most min(d/s², √d/s)·‖x‖² for blocks of d elements. `int8` and `int4` scale by the largest
    number instead of the norm, and have less variance for the same bytes.

    The paper writes the codes with Elias codes, whose size depends on the numbers. Here the size is
    fixed: a byte has 5 codes for s = 1, 3 for s = 2, 2 for s up to 7 and 1 for s up to 127; and a
    block has 4 bytes more.

    Use it to compare with the literature, and without error feedback.

    Example: `allreduce(codec=qsgd(levels=7))`

    Paper: Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and
    Encoding, NeurIPS 2017.
    """

    name: ClassVar[str] = "qsgd"

    levels: int = 7
    """s: the number of levels above 0, from 1 to 127."""
    block: int = 512
    """d: elements that share a norm (a bucket, in the paper)."""

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= 127:
            raise ValueError(f"levels must be from 1 to 127, got {self.levels}")
        check_block(self.block)

    @property
    def grid(self) -> Grid:
        """The levels and the length of the blocks."""
        return Grid(self.levels, self.block, "euclidean")

    @property
    def contracts(self) -> bool:
        """Whether min(d/s², √d/s) is below 1: with 7 levels for blocks of less than 49 elements."""
        return self.block < self.levels**2
