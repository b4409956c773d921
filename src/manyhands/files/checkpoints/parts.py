"""What one process gives to a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch


@dataclass(frozen=True, eq=False)
class TensorPart:
    """A tensor, or a part of one, that a process stores."""

    name: str
    """With its family, as `model/fc.weight`."""
    tensor: torch.Tensor
    whole: tuple[int, ...]
    """The shape of the whole tensor."""
    begin: tuple[int, ...]
    """Where the part begins; the index of its first element if it is `flat`."""
    flat: bool = False


@dataclass(frozen=True, eq=False)
class MemberState:
    """What one process stores in a checkpoint."""

    pieces: Iterable[TensorPart] = ()
    values: Mapping[str, Any] | None = None
    """Numbers by name; plain JSON. Processes that have the same ones may all give them."""
    own: Mapping[str, torch.Tensor] | None = None
    """Tensors that only this process needs."""
    own_values: Mapping[str, Any] | None = None
