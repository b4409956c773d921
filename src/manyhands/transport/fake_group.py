"""Fake process group: one process plays one worker of many, and collectives do nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed import Work

from manyhands.engine import fake_group
from manyhands.transport.collectives import Group

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta


class Done(Work):
    """A send or receive that has completed."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self._tensor = tensor

    def wait(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002 - as a work's
        """Return at once."""
        return True


class FakeGroup(Group):
    """One worker of `size`, whose collectives return at once and change nothing."""

    def __init__(
        self, rank: int, size: int, device: torch.device, names: Sequence[int] | None = None
    ) -> None:
        self.rank, self.size, self.epoch = rank, size, 0
        self.device = device
        self.names = tuple(names or range(size))
        self.handle = fake_group(rank, size)
        self.whole = self
        self.at_close = []
        self._parts, self._shared = [], []
        self._sockets, self._peers = [], []

    def part(self, name: str, ranks: Sequence[int]) -> Group:  # noqa: ARG002 - as a group's
        """A fake subgroup."""
        names = [self.names[rank] for rank in ranks]
        part = FakeGroup(list(ranks).index(self.rank), len(ranks), self.device, names)
        part.whole = self.whole
        self._parts.append(part)
        return part

    def send(self, tensor: torch.Tensor, to: int, tag: int = 0) -> Work:  # noqa: ARG002
        """A completed send, which keeps the tensor alive."""
        return Done(tensor)

    def receive(self, tensor: torch.Tensor, source: int, tag: int = 0) -> Work:  # noqa: ARG002
        """A completed receive, which leaves the tensor unchanged."""
        return Done(tensor)

    def sum(self, tensor: torch.Tensor) -> None:
        """Leave the tensor unchanged."""

    def sum_small(self, tensor: torch.Tensor) -> None:
        """Leave the tensor unchanged."""

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> None:
        """Leave the tensor unchanged."""

    def gather(self, gathered: torch.Tensor, own: torch.Tensor) -> None:  # noqa: ARG002
        """Allocate as much as Gloo does for gathering, and leave the tensor unchanged."""
        torch.empty_like(gathered)
