"""PowerSGD: gradients of matrices as products of two thin ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from manyhands.codecs.reducers.reducer import Reducer


@dataclass(frozen=True, repr=False)
class PowerSGD(Reducer):
    """Send a gradient of n × m numbers as two matrices of n × r and m × r, which are averaged.

    M_w ← ΔW_w + e_w; P ← mean of M_w·Q, made orthonormal; Q ← mean of M_wᵀ·P, which is also the
    next step's first Q; e_w ← M_w − P·(M_wᵀ·P)ᵀ. Every worker steps with P·Qᵀ. A parameter of more
    than two dims is a matrix with a row for each index of its first. Vectors, and matrices for
    which two thin ones are not smaller, are sent whole.

    Use it for large matrices on slow networks. A worker sends 2·r·(n + m)·(N − 1)/N numbers for a
    matrix, and computes three products with r columns.

    Example: `allreduce(codec=powersgd(rank=2))`

    Paper: Vogels et al., PowerSGD: Practical Low-Rank Gradient Compression for Distributed
    Optimization, NeurIPS 2019.
    """

    name: ClassVar[str] = "powersgd"
    feeds_back: ClassVar[bool] = True

    rank: int = 1
    """Columns of the two matrices, r. More are closer to the gradient and cost more bytes."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")

    def divides(self, rows: int, columns: int) -> bool:
        """Whether a matrix is sent as two thin ones.

        >>> PowerSGD(rank=2).divides(10, 10), PowerSGD(rank=10).divides(10, 10)
        (True, False)
        """
        thin = self.rank * (rows + columns) < rows * columns
        return thin and self.rank < min(rows, columns)
