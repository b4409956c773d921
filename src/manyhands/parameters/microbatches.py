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
    for begin, end in pairwise(accumulate(sizes, initial=0)):
        yield _between(batch, begin, end)


def _between(value: Any, begin: int, end: int) -> Any:
    if value is None:
        return None
    if isinstance(value, Mapping):
        return rebuilt(value, {key: _between(item, begin, end) for key, item in value.items()})
    if isinstance(value, (list, tuple)) and any(map(_nested, value)):
        return rebuilt(value, [_between(item, begin, end) for item in value])
    if isinstance(value, torch.Tensor) and not value.dim():
        return value
    return value[begin:end] if hasattr(value, "__getitem__") else value


def _nested(item: object) -> bool:
    """Whether a list with such an item has one item per field, and not one per sample."""
    return isinstance(item, (torch.Tensor, Mapping, list, tuple))
