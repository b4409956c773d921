"""The parameters of a shard as bytes, and the arithmetic of a protocol's actions on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from manyhands.parameters.arithmetic import add, as_bytes, descend, lerp, scale
from manyhands.parameters.layout import Fragment, Shard

if TYPE_CHECKING:
    from collections.abc import Sequence


class ShardVectors:
    """The parameters of a shard, the sums of updates to it, and what outer steps keep.

    Args:
        shard: what the bytes mean.
        values: the bytes of the parameters, then of the buffers; changed in place.
    """

    def __init__(self, shard: Shard, values: torch.Tensor) -> None:
        self.shard = shard
        self.bytes = values
        """The parameters, then the buffers."""
        self._buffers = [fragment.view(values) for fragment in shard.buffers]
        self._sums: dict[int, torch.Tensor] = {}
        self._velocity: torch.Tensor | None = None
        self._scratch: torch.Tensor | None = None
        self._extras: dict[str, torch.Tensor] = {}
        self.revision = 0
        """How often the parameters were changed, by its predecessors as well."""

    @classmethod
    def of(cls, values: torch.Tensor) -> ShardVectors:
        """Those of a flat tensor of one dtype, which is not copied."""
        size = values.numel()
        whole = Fragment("", 0, size, (size,), values.dtype, 0, 0)
        return cls(Shard(0, (whole,), ()), as_bytes(values))

    @property
    def velocity(self) -> torch.Tensor | None:
        """The momentum of the outer step, as bytes; None before the first one."""
        return self._velocity

    @velocity.setter
    def velocity(self, velocity: torch.Tensor | None) -> None:
        self._velocity = velocity

    @property
    def own_vectors(self) -> dict[str, torch.Tensor]:
        """The vectors of `own_vector`, by name."""
        return self._extras

    @property
    def vector(self) -> torch.Tensor:
        """The parameters as one vector, without buffers; a view that may be changed in place."""
        return self.shard.vector(self.bytes)

    def own_vector(self, name: str) -> torch.Tensor:
        """A vector as long as `vector` that belongs to the protocol; zeros at first.

        It is a part of the shard's state: a server that is restarted has it again.
        """
        if name not in self._extras:
            self._extras[name] = torch.zeros_like(self.vector)
        return self._extras[name]

    def add(self, update: torch.Tensor, share: float, pot: int = 0) -> None:
        """Add an update, times `share`, to a sum."""
        if pot not in self._sums:
            free = self._scratch
            self._sums[pot] = torch.zeros_like(self.bytes) if free is None else free.zero_()
            self._scratch = None
        add(self.shard, self._sums[pot], update, share)

    def take_sum(self, over: float, pot: int = 0) -> torch.Tensor:
        """Return a sum divided by `over`, and reset it."""
        if pot not in self._sums:
            raise ValueError("there is no sum: no update was added before")
        self._scratch = total = self._sums.pop(pot)
        scale(self.shard, total, 1 / over)
        return total

    def gathered(self) -> torch.Tensor:
        """The current sum, which is kept."""
        return self._sums[0]

    def put_sum(self, total: torch.Tensor) -> None:
        """Let the first sum be this tensor, which is not copied."""
        self._sums[0] = total

    def free(self) -> None:
        """Free all sums, and the memory that is kept for the next one."""
        self._sums, self._scratch = {}, None

    def drop(self, pot: int) -> None:
        """Discard a sum, if there is one."""
        self._scratch = self._sums.pop(pot, self._scratch)

    def move(self, by: float, over: float, pots: Sequence[int] = (0,)) -> None:
        """Interpolate towards the total of sums / `over`; buffers are replaced by it."""
        first, *others = pots
        for pot in others:
            add(self.shard, self._sums[first], self._sums[pot], 1.0)
            self.drop(pot)
        lerp(self.shard, self.bytes, self.take_sum(over, first), by)

    def shift(self, change: torch.Tensor) -> None:
        """Add a change to the parameters; buffers become the change's."""
        for flat in self.shard.flat_by_dtype:
            flat.view(self.bytes).add_(flat.view(change))
        for fragment in self.shard.buffers:
            fragment.bytes(self.bytes).copy_(fragment.bytes(change))

    def scale(self, by: float) -> None:
        """Multiply the parameters; buffers stay."""
        for flat in self.shard.flat_by_dtype:
            flat.view(self.bytes).mul_(by)

    def descend(self, over: float, rate: float, momentum: float, *, changes: bool = False) -> None:
        """Take an outer step with Nesterov momentum; its gradient is shard − sum / `over`.

        With `changes` the sum is one of changes, and the gradient is −sum / `over`. Buffers are
        replaced by the mean.
        """
        target = self.take_sum(over)
        if changes:
            for flat in self.shard.flat_by_dtype:
                flat.view(target).add_(flat.view(self.bytes))
        if self._velocity is None:
            self._velocity = torch.zeros_like(self.bytes)
        for flat in self.shard.flat_by_dtype:
            here, there = flat.view(self.bytes), flat.view(target)
            descend(here, there, flat.view(self._velocity), rate, momentum)
        for buffer, fragment in zip(self._buffers, self.shard.buffers, strict=True):
            buffer.copy_(fragment.view(target))
