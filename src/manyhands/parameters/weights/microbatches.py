"""Division of a batch into microbatches."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch

from manyhands.data.taking import rebuilt
from manyhands.sampling.division import part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def sizes_of(samples: int, count: int) -> tuple[int, ...]:
    """Sizes of `count` parts, which differ by one sample at most."""
    parts = (range(samples)[part(samples, number, count)] for number in range(count))
    return tuple(map(len, parts))


def divide(batch: Any, sizes: Sequence[int]) -> Iterator[Any]:
    """Split a batch, or a nested structure of tensors, into microbatches."""
    rows = sum(sizes)
    for begin, end in pairwise(accumulate(sizes, initial=0)):
        yield _between(batch, begin, end, rows)


def rows_of(batch: Any, samples: int) -> int:
    """The length along which a batch can be divided: that of dim 0 of all of its tensors.

    It is the number of samples, unless the job's `collate_fn` returns a row for something else, or
    has left out samples.

    Args:
        batch: a nested structure.
        samples: the samples that the batch was asked for with.

    Raises:
        ValueError: there is none.
    """
    lengths = set(_lengths(batch, samples))
    if lengths <= {samples}:
        return samples
    shapes = [tuple(one.shape) for one in tensors(batch)]
    if len(lengths) == 1 and not any(samples in shape[1:] for shape in shapes):
        return lengths.pop()
    found = ", ".join(map(str, shapes[:4])) or f"lengths {sorted(lengths)}"
    raise ValueError(
        "micro_batch divides every tensor of a batch along dim 0, which must be that of the "
        f"samples: got {found} for a batch of {samples} samples. Return tensors with the samples "
        "along dim 0 from collate_fn (batch_first=True), or leave out micro_batch"
    )


def _between(value: Any, begin: int, end: int, rows: int) -> Any:
    if isinstance(value, Mapping):
        items = {key: _between(item, begin, end, rows) for key, item in value.items()}
        return rebuilt(value, items)
    if isinstance(value, (list, tuple)) and not _one_per_sample(value, rows):
        return rebuilt(value, [_between(item, begin, end, rows) for item in value])
    return value if _is_whole(value) else value[begin:end]


def _is_whole(value: Any) -> bool:
    """Whether every part of a batch has the whole of a value.

    Raises:
        ValueError: nothing is known of such a value.
    """
    if isinstance(value, torch.Tensor):
        return not value.dim()
    if value is None or isinstance(value, (str, bytes, int, float, complex)):
        return True
    if hasattr(value, "__getitem__") and hasattr(value, "__len__"):
        return False
    raise ValueError(
        f"micro_batch cannot divide a {type(value).__name__}, which has no samples to index: "
        "return tensors, dictionaries or lists from collate_fn, or leave out micro_batch"
    )


def _one_per_sample(value: list[Any] | tuple[Any, ...], rows: int) -> bool:
    """Whether a list has one item per sample, and not one per field."""
    if not any(isinstance(item, (torch.Tensor, Mapping, list, tuple)) for item in value):
        return True
    if len(value) != rows:
        return False
    # As many fields as samples, each of that length, are fields.
    lengths = [length for item in value for length in _lengths(item, rows)]
    return any(length != rows for length in lengths) or not lengths


def _lengths(value: Any, rows: int) -> Iterator[int]:
    """The lengths of the tensors in a batch along dim 0, and of its lists of samples."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _lengths(item, rows)
    elif isinstance(value, (list, tuple)) and not _one_per_sample(value, rows):
        for item in value:
            yield from _lengths(item, rows)
    elif not _is_whole(value):
        yield len(value)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a nested batch."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors(item)
