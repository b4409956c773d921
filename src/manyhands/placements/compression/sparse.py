"""Sparse allreduce: sums of the largest entries, in rounds of pairs (recursive doubling)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from manyhands.codecs.kernels.arrays import numbers
from manyhands.codecs.kernels.largest import largest
from manyhands.placements.compression.bucket import Bucket, BucketStates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from manyhands.codecs.reducers import SparseSum
    from manyhands.placements.compression.exchange import Exchange


@dataclass(frozen=True, eq=False)
class SparseVector:
    """A vector of which only some entries are not zero; or of which all are given."""

    size: int
    indices: torch.Tensor | None
    """Positions of the entries, ascending, as int32; None if all are given."""
    values: torch.Tensor

    def added(self, other: SparseVector) -> SparseVector:
        """The sum of two vectors. It is equal to the bit whichever of the two comes first."""
        if self.indices is None or other.indices is None:
            dense, rest = (self, other) if self.indices is None else (other, self)
            total = dense.values.clone()
            if rest.indices is None:
                total.add_(rest.values)
            else:
                total[rest.indices.long()] += rest.values
            return SparseVector(self.size, None, total)
        both = torch.cat([self.indices, other.indices])
        indices, places = torch.unique(both, return_inverse=True)
        values = self.values.new_zeros(len(indices))
        values[places[: len(self.indices)]] = self.values
        values[places[len(self.indices) :]] += other.values
        return SparseVector(self.size, indices, values)

    def densified(self) -> SparseVector:
        """The same vector with all entries given."""
        if self.indices is None:
            return self
        values = self.values.new_zeros(self.size)
        values[self.indices.long()] = self.values
        return SparseVector(self.size, None, values)

    def payload(self) -> torch.Tensor:
        """Its bytes: indices, if not all entries are given, then values."""
        values = self.values.view(torch.uint8)
        if self.indices is None:
            return values
        return torch.cat([self.indices.view(torch.uint8), values])

    @classmethod
    def of(cls, payload: torch.Tensor, size: int, dtype: torch.dtype) -> SparseVector:
        """The vector of a payload; one as long as the vector itself has all entries."""
        if len(payload) == size * dtype.itemsize:
            return cls(size, None, payload.view(dtype))
        entries, rest = divmod(len(payload), 4 + dtype.itemsize)
        if rest or entries > size:
            raise ValueError(f"expected entries of a vector of {size}, got {len(payload)} bytes")
        indices = payload[: 4 * entries].view(torch.int32)
        return cls(size, indices, payload[4 * entries :].clone().view(dtype))


class SparseMean:
    """The mean over all workers of the largest entries of each one's bucket.

    Args:
        reducer: the fraction of entries.
        exchange: the workers.
    """

    def __init__(self, reducer: SparseSum, exchange: Exchange) -> None:
        self._reducer = reducer
        self._exchange = exchange
        self.states: BucketStates[torch.Tensor] = BucketStates(_residual, lambda residual: residual)

    def reduce(self, bucket: Bucket) -> None:
        """Replace the bucket's vector by the mean."""
        vector = bucket.vector
        size = vector.numel()
        entries = self._reducer.selected(size)
        residual = self.states.of(bucket)
        residual.add_(vector)
        if entries == size:
            vector.copy_(residual)
            residual.zero_()
            self._exchange.sum(vector)
        else:
            with self._exchange.coding():
                indices = torch.from_numpy(largest(numbers(residual), entries))
                values = residual[indices]
                residual[indices] = 0
                own = self._packed(SparseVector(size, indices.int(), values))
            total = self._sum(own)
            with self._exchange.coding():
                _write(total, vector)
        vector.div_(self._exchange.size)

    def unsent(self) -> dict[str, torch.Tensor]:
        """What was not sent yet of this worker's share of the sum, by parameter, as vectors."""
        return self.states.unsent()

    def kept(self) -> dict[str, torch.Tensor]:
        """Nothing else."""
        return {}

    def carry(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Begin with what was not sent before."""
        self.states.carry(tensors)

    def _sum(self, own: SparseVector) -> SparseVector:
        """The sum over all workers, by recursive doubling.

        If their number is not a power of two, those beyond the largest power of two below it give
        their vectors to the first workers, and receive the result from them.
        """
        rank, workers = self._exchange.rank, self._exchange.size
        paired = 1 << (workers.bit_length() - 1)
        if rank >= paired:
            self._exchange.send(rank - paired, own.payload())
            return self._of(self._exchange.receive(rank - paired), own)
        total = own
        if rank + paired < workers:
            total = self._plus(total, self._exchange.receive(rank + paired))
        distance = 1
        while distance < paired:
            total = self._plus(total, self._exchange.swap(rank ^ distance, total.payload()))
            distance *= 2
        if rank + paired < workers:
            self._exchange.send(rank + paired, total.payload())
        return total

    def _plus(self, total: SparseVector, payload: torch.Tensor) -> SparseVector:
        with self._exchange.coding():
            return self._packed(total.added(self._of(payload, total)))

    def _packed(self, vector: SparseVector) -> SparseVector:
        """The vector in the form that is fewer bytes."""
        itemsize = vector.values.element_size()
        dense = self._reducer.is_dense(len(vector.values), vector.size, itemsize)
        return vector.densified() if dense else vector

    @staticmethod
    def _of(payload: torch.Tensor, like: SparseVector) -> SparseVector:
        return SparseVector.of(payload, like.size, like.values.dtype)


def _write(total: SparseVector, into: torch.Tensor) -> None:
    if total.indices is None:
        into.copy_(total.values)
    else:
        into.zero_()
        into[total.indices.long()] = total.values


def _residual(bucket: Bucket, carried: torch.Tensor | None) -> torch.Tensor:
    return torch.zeros_like(bucket.vector) if carried is None else carried
