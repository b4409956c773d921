"""A group with nobody in it but oneself, which believes that the others are there."""

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
    """Something that was sent or received at once."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self._tensor = tensor

    def wait(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002 - as a work's
        """It is over."""
        return True


class FakeGroup(Group):
    """One worker among `size`, whose collectives end at once and change nothing."""

    def __init__(
        self, rank: int, size: int, device: torch.device, names: Sequence[int] | None = None
    ) -> None:
        self.rank, self.size, self.epoch = rank, size, 0
        self.device = device
        self.names = tuple(names or range(size))
        self.handle = fake_group(rank, size)
        self.whole = self
        self.at_close = []
        self._parts = []
        self._sockets, self._peers = [], []

    def part(self, name: str, ranks: Sequence[int]) -> Group:  # noqa: ARG002 - as a group's
        """Some of them."""
        names = [self.names[rank] for rank in ranks]
        part = FakeGroup(list(ranks).index(self.rank), len(ranks), self.device, names)
        part.whole = self.whole
        self._parts.append(part)
        return part

    def send(self, tensor: torch.Tensor, to: int, tag: int = 0) -> Work:  # noqa: ARG002
        """It is held for as long as somebody may wait for it."""
        return Done(tensor)

    def receive(self, tensor: torch.Tensor, source: int, tag: int = 0) -> Work:  # noqa: ARG002
        """Nothing comes."""
        return Done(tensor)

    def sum(self, tensor: torch.Tensor) -> None:
        """Nothing is added."""

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> None:
        """Nothing is heard."""

    def gather(self, everybody: torch.Tensor, own: torch.Tensor) -> None:  # noqa: ARG002
        """Nothing is gathered; but Gloo gathers into memory of its own, and copies from there."""
        torch.empty_like(everybody)
