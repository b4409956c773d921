"""Sparse allreduce: sums of the largest entries of every worker's gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from manyhands.codecs.reducers.reducer import Reducer

_INDEX = 4
"""Bytes of an index."""


@dataclass(frozen=True, repr=False)
class SparseSum(Reducer):
    """Sum the largest entries of every worker's gradient, as pairs of index and value.

    Each worker selects the entries of the largest magnitude in each bucket, and keeps the others
    for its next gradient (error feedback). Sparse vectors are added in log2(N) rounds, in each of
    which workers exchange their sums in pairs, at twice the distance of the round before; a vector
    is sent whole as soon as pairs would be larger. The result is the sum of all selected entries:
    nothing of it is dropped, unlike with `topk`, where the mean is selected from once more.

    Use it on slow networks with few workers: the more workers, the more entries a sum has.

    Example: `allreduce(codec=sparse_sum(fraction=0.001))`

    Paper: Renggli et al., SparCML: High-Performance Sparse Communication for Machine Learning,
    SC 2019.
    """

    name: ClassVar[str] = "sparse_sum"
    feeds_back: ClassVar[bool] = True

    fraction: float = 0.01
    """Fraction of the entries that each worker selects; at least one per bucket."""

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, got {self.fraction}")

    def selected(self, size: int) -> int:
        """Entries that are selected of a vector.

        >>> SparseSum(fraction=0.01).selected(250)
        3
        """
        return min(size, max(1, math.ceil(self.fraction * size)))

    @staticmethod
    def is_dense(entries: int, size: int, itemsize: int) -> bool:
        """Whether a vector with so many entries is smaller when it is sent whole.

        >>> SparseSum.is_dense(49, 100, 4), SparseSum.is_dense(50, 100, 4)
        (False, True)
        """
        return entries * (_INDEX + itemsize) >= size * itemsize
