"""What one process gives to a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from manyhands.files.checkpoints.manifest import (
    ManifestFile,
    ManifestPart,
    ManifestTensor,
    PartFile,
    file_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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


def describe(
    member: str, state: MemberState, take: Callable[[str, torch.Tensor], object]
) -> PartFile:
    """What the file of a process has; its size and SHA-256 are not known yet.

    Args:
        member: the process, as `worker-0`.
        state: what it stores.
        take: called with every tensor and its name in the file, in order.
    """
    tensors: dict[str, ManifestTensor] = {}
    taken: set[str] = set()
    for piece in state.pieces:
        key = piece.name if piece.name not in taken else f"{piece.name}@{piece.begin}"
        taken.add(key)
        take(key, piece.tensor)
        kind = str(piece.tensor.dtype).removeprefix("torch.")
        shape = tuple(piece.tensor.shape)
        part = ManifestPart(file_of(member), key, piece.begin, shape, piece.flat)
        known = tensors.get(piece.name)
        stored = ManifestTensor(kind, piece.whole, (part,))
        tensors[piece.name] = stored if known is None else known.with_parts((part,))
    own = {f"own/{name}": tensor for name, tensor in (state.own or {}).items()}
    for key, tensor in own.items():
        take(key, tensor)
    values, own_values = dict(state.values or {}), dict(state.own_values or {})
    return PartFile(ManifestFile(0, ""), tensors, values, tuple(own), own_values)
