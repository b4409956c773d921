"""Payload and memory of a bucket that a codec or reducer averages, by formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.codecs import BFloat16, Codec, Half
from manyhands.codecs.reducers import Factors, PowerSGD, Reducer, SparseSum
from manyhands.costs import Collective, TensorSize

if TYPE_CHECKING:
    from collections.abc import Sequence


def part_sizes(size: int, parts: int) -> list[int]:
    """Elements of each part of a vector; only the last parts are smaller than the others.

    >>> part_sizes(10, 4)
    [3, 3, 3, 1]
    """
    most = -(-size // parts)
    return [max(0, min(most, size - at * most)) for at in range(parts)]


def bucket_collectives(
    codec: Codec | Reducer | None, bucket: Sequence[TensorSize], workers: int
) -> tuple[Collective, ...]:
    """The collectives that average a bucket of gradients, in order.

    Args:
        codec: how it is sent; None for as it is.
        bucket: the parameters of the bucket.
        workers: number of workers.

    Raises:
        ValueError: the bytes depend on more than sizes; the message says on what.

    >>> bucket = [TensorSize("weight", 400, rows=10), TensorSize("bias", 40, rows=10)]
    >>> [(one.kind, one.size) for one in bucket_collectives(Half(), bucket, 2)]
    [('allreduce', 220)]
    >>> [(one.kind, one.size) for one in bucket_collectives(PowerSGD(rank=2), bucket, 2)]
    [('allreduce', 120), ('allreduce', 80)]
    """
    whole = sum(tensor.size for tensor in bucket)
    if codec is None or workers == 1:
        return (Collective("allreduce", whole),)
    size, itemsize = _elements(bucket), bucket[0].itemsize
    match codec:
        case Half() | BFloat16():
            return (Collective("allreduce", codec.wire_bytes(size, itemsize)),)
        case Codec() if codec.fixed_size:
            parts = part_sizes(size, workers)
            sent = sum(codec.wire_bytes(part, itemsize) for part in parts if part)
            return (Collective("all_to_all", sent), Collective("all_gather", sent))
        case PowerSGD():
            return _low_rank(codec, bucket)
        case SparseSum() if codec.selected(size) == size:
            return (Collective("allreduce", whole),)
    depends = {
        SparseSum: "on how far the largest entries of all workers coincide",
        Factors: "on the rows that each layer computes in a step",
    }
    raise ValueError(
        f"the bytes of {codec} depend {depends.get(type(codec), 'on the gradients')} and are not "
        "forecast: train a few steps, and read the payload in the summary"
    )


def _low_rank(codec: PowerSGD, bucket: Sequence[TensorSize]) -> tuple[Collective, ...]:
    """One sum for left matrices and what is sent whole, one for right matrices."""
    first = second = 0
    for tensor in bucket:
        columns = tensor.size // tensor.itemsize // max(1, tensor.rows)
        if codec.divides(tensor.rows, columns):
            first += codec.rank * tensor.rows * tensor.itemsize
            second += codec.rank * columns * tensor.itemsize
        else:
            first += tensor.size
    return tuple(Collective("allreduce", size) for size in (first, second) if size)


def kept_bytes(codec: Codec | Reducer | None, bucket: Sequence[TensorSize], workers: int) -> int:
    """Bytes that a worker keeps of a bucket between steps: mainly what was not sent.

    >>> bucket = [TensorSize("weight", 400, rows=10), TensorSize("bias", 40, rows=10)]
    >>> kept_bytes(Half(), bucket, 2), kept_bytes(PowerSGD(rank=2), bucket, 2)
    (440, 560)
    """
    if codec is None or workers == 1 or not codec.feeds_back:
        return 0
    size, itemsize = _elements(bucket), bucket[0].itemsize
    match codec:
        case PowerSGD(rank=rank):
            kept = 0
            for tensor in bucket:
                columns = tensor.size // tensor.itemsize // max(1, tensor.rows)
                if codec.divides(tensor.rows, columns):
                    # What was not sent, and both thin matrices.
                    kept += tensor.size + rank * (tensor.rows + columns) * itemsize
            return kept
        case Half() | BFloat16() | SparseSum():
            return size * itemsize
    return (size + part_sizes(size, workers)[0]) * itemsize


def _elements(bucket: Sequence[TensorSize]) -> int:
    return sum(tensor.size // tensor.itemsize for tensor in bucket)
