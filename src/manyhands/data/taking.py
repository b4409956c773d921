"""Batches from any dataset: loaded as a whole if possible, and always as a pair."""

from __future__ import annotations

import inspect
from copy import copy
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch.utils.data import Subset, TensorDataset, default_collate

from manyhands.data.samples import Samples
from manyhands.data.stream import is_stream

if TYPE_CHECKING:
    from collections.abc import Callable


_INDICES = frozenset({"indices", "index", "idx", "idxs", "ids", "rows", "positions"})
"""Names that the parameter of `TakesBatches.take` may have."""


@runtime_checkable
class TakesBatches(Protocol):
    """Data that can load a whole batch at once."""

    def take(self, indices: torch.Tensor) -> Any:
        """The batch of these samples; the parameter's name tells it from `take(n)`."""


def taker(data: object) -> Callable[[torch.Tensor], Any] | None:
    """A function that loads a whole batch at once; None if the data loads samples one by one."""
    if isinstance(data, TakesBatches) and _takes_indices(data.take):
        return data.take
    # A subclass may load samples in its own way.
    if type(data) is TensorDataset:
        return partial(_index, data.tensors)
    # Other data may draw random numbers, for which each sample of a subset has its own seed.
    if type(data) is Subset and isinstance(data.dataset, (Samples, TensorDataset)):
        inner = taker(data.dataset)
        return None if inner is None else partial(_take_from, inner, _positions(data))
    return None


def _takes_indices(take: Callable[..., Any]) -> bool:
    """Whether a method `take` is given the indices of samples, and not how many to take.

    The latter is what `take(n)` of Hugging Face's datasets and of streams means.
    """
    try:
        first = next(iter(inspect.signature(take).parameters.values()), None)
    except ValueError:
        return False  # a method without a signature, such as an array's
    return first is not None and first.name in _INDICES


def _positions(data: Subset[Any]) -> torch.Tensor:
    """Where the samples of a subset are in its data, counted from the beginning."""
    positions = torch.tensor(data.indices, dtype=torch.int64)
    return torch.where(positions < 0, positions + len(data.dataset), positions)  # type: ignore[arg-type]  # Sized


def _take_from(
    take: Callable[[torch.Tensor], Any], positions: torch.Tensor, indices: torch.Tensor
) -> Any:
    return take(positions[indices])


def _index(tensors: tuple[torch.Tensor, ...], indices: torch.Tensor) -> Any:
    # As tensor[indices] for indices of whole samples, in a third of its time.
    return tuple([tensor.index_select(0, indices) for tensor in tensors])


def fetch(data: Any, collate: Callable[[list[Any]], Any] | None, indices: list[int]) -> Any:
    """The batch of these samples, loaded as a DataLoader does."""
    several = getattr(data, "__getitems__", None)
    samples = several(indices) if several else [data[index] for index in indices]
    return (collate or default_collate)(samples)


def preview(data: Any, collate: Callable[[list[Any]], Any] | None, samples: int) -> Any:
    """The batch of the first samples; of fewer if the data has fewer.

    Raises:
        ValueError: the data is empty.
    """
    if is_stream(data):
        found = list(islice(iter(data), samples))
        if not found:
            raise ValueError("the stream is empty: give Job(data=...) at least 1 sample")
        return (collate or default_collate)(found)
    indices = torch.arange(min(samples, len(data)))
    take = taker(data) if collate is None else None
    return take(indices) if take else fetch(data, collate, indices.tolist())


def rebuilt(value: Any, items: Any) -> Any:
    """A list, tuple, named tuple or mapping like another, with other items."""
    if hasattr(value, "_fields"):
        return type(value)(*items)
    if isinstance(value, dict) and type(value) is not dict:
        # A subclass may take other arguments than a mapping.
        again = copy(value)
        again.update(items)
        return again
    return type(value)(items)


def as_pair(batch: Any) -> tuple[Any, Any]:
    """A batch's inputs and targets."""
    if isinstance(batch, (list, tuple)) and len(batch) == 2:
        return batch[0], batch[1]
    raise TypeError(
        "each sample of the data must be a pair (input, target), or the job needs an "
        "objective(model, batch) in place of its loss: "
        f"got a batch that is a {type(batch).__name__}"
        + (f" of {len(batch)}" if isinstance(batch, (list, tuple)) else "")
    )
