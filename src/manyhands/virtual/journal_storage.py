"""Storage of a virtual server's journal: bytes that outlive a simulated crash.

The journal is that of a live server (`manyhands.protocols.parts.recovery`), so a server that
crashes on the virtual clock continues from what a live one would have written. Snapshots are taken
often, so that simulated crashes restore them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST: Final = 5
"""The most calls between two snapshots."""
_BUDGET: Final = 64 << 20
"""Bytes of updates that are kept between two snapshots, if that is more than one update."""


class PrivateLog:
    """A log in the memory of this process.

    Args:
        size: bytes of an update.
    """

    def __init__(self, size: int) -> None:
        self._limit = max(1, min(_MOST, _BUDGET // max(1, size)))
        self._heads: dict[int, bytes] = {}
        self._payloads: dict[int, bytearray] = {}
        self._snapshot: tuple[dict[str, tuple[str, tuple[int, ...], bytearray]], str] | None = None

    def limit(self, state: int) -> int:
        """The calls between two snapshots."""
        del state
        return self._limit

    def is_crowded(self) -> bool:
        """Never: every call has a slot."""
        return False

    def put(self, index: int, payload: memoryview) -> int:
        """Copy the payload of a call."""
        self._payloads[index] = bytearray(payload)
        return index

    def write_head(self, index: int, head: bytes) -> None:
        """Write the head of a call."""
        self._heads[index] = head

    def read_head(self, index: int) -> bytes:
        """The head of a call; empty after the last one."""
        return self._heads.get(index, b"")

    def read(self, place: int, size: int) -> torch.Tensor | None:
        """A payload."""
        if not size:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(self._payloads[place], dtype=torch.uint8, count=size)

    def save(self, tensors: Mapping[str, torch.Tensor], facts: str, generation: int) -> None:
        """Replace the last snapshot."""
        del generation  # it is one of the facts
        packed = {
            name: (
                str(tensor.dtype).removeprefix("torch."),
                tuple(tensor.shape),
                bytearray(tensor.detach().reshape(-1).view(torch.uint8).numpy().data),
            )
            for name, tensor in tensors.items()
        }
        self._snapshot = packed, facts

    def load(self) -> tuple[dict[str, torch.Tensor], str] | None:
        """The last snapshot; None if there is none."""
        if self._snapshot is None:
            return None
        packed, facts = self._snapshot
        return {name: _unpacked(*one) for name, one in packed.items()}, facts

    def reuse(self) -> None:
        """Nothing to free: every call overwrites the one with its index."""


def _unpacked(dtype: str, shape: tuple[int, ...], data: bytearray) -> torch.Tensor:
    kind: torch.dtype = getattr(torch, dtype)
    if not data:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=kind).reshape(shape)
