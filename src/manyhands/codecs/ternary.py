"""TernGrad: every number becomes −s, 0 or s at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from manyhands.codecs.kernels.sizes import Grid
from manyhands.codecs.quantised import Quantised, check_block


@dataclass(frozen=True, repr=False)
class Ternary(Quantised):
    """Send −1, 0 or +1 per number and the largest magnitude of each block (TernGrad).

    t_i = s · sign(x_i) · b_i with s = max|x| over the block and b_i = 1 with probability |x_i| / s,
    else 0. The mean is x_i and the variance |x_i|·(s − |x_i|): it is small only if the numbers of a
    block are of similar size, so blocks are short.

    Use it for gradients that are averaged over many workers, where the noise of the workers
    cancels; otherwise `onebit` with error feedback has less error for fewer bytes. Five numbers are
    in one byte, and 4 bytes per block: 0.208 bytes per element.

    Example: `allreduce(codec=ternary())`

    Paper: Wen et al., TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep
    Learning, NeurIPS 2017 (one scale per layer, and gradients clipped at 2.5 standard deviations).
    """

    name: ClassVar[str] = "ternary"

    block: int = 512
    """Elements that share a scale."""

    def __post_init__(self) -> None:
        check_block(self.block)

    @property
    def grid(self) -> Grid:
        """The levels and the length of the blocks."""
        return Grid(1, self.block)

    @property
    def contracts(self) -> bool:
        """The variance of a block is Σ|x_i|·(s − |x_i|), which may be more than Σx_i²."""
        return False
