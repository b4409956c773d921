"""Map-style datasets."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class SizedData(Protocol):
    """A map-style dataset: `len(data)` samples, of which `data[index]` is one.

    Example:
        >>> import torch
        >>> import manyhands as mh
        >>> isinstance(torch.utils.data.TensorDataset(torch.ones(8, 2)), mh.SizedData)
        True
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...
