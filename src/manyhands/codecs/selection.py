"""Codecs that send some of the numbers and leave the others for later."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from manyhands.codecs.codec import Codec

if TYPE_CHECKING:
    import torch


class Selection(Codec):
    """Some numbers are sent as they are, with their positions; the others are decoded as 0.

    A payload is the numbers, then what describes their positions, whose size depends on the size of
    the vector only. `chain` encodes the numbers with another codec.
    """

    @abstractmethod
    def count(self, size: int) -> int:
        """How many of `size` numbers are sent."""

    @abstractmethod
    def position_bytes(self, size: int) -> int:
        """Bytes that describe the positions."""

    @abstractmethod
    def choose(self, vector: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The positions that are sent, sorted, and the bytes that describe them."""

    @abstractmethod
    def positions(self, described: torch.Tensor, size: int) -> torch.Tensor:
        """The positions that these bytes describe, sorted and each of them once.

        Raises:
            CodecError: they describe no choice of this codec among `size` numbers.
        """

    def weights(self, described: torch.Tensor, size: int) -> torch.Tensor | None:
        """What the numbers are multiplied with so that their mean is right; None for 1."""
        del described, size
        return None

    def encode(self, vector: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """The numbers that are sent, and their positions."""
        return self._encode(vector, seed)[1]

    def encode_rest(self, vector: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """Encode, and set what was sent to zero."""
        if not self.feeds_back:  # numbers may be sent with weights
            return super().encode_rest(vector, seed)
        chosen, payload = self._encode(vector, seed)
        vector[chosen] = 0
        return payload

    def decode(self, payload: torch.Tensor, into: torch.Tensor) -> None:
        """Write the numbers to their positions, and zeros elsewhere."""
        from manyhands.codecs.kernels.arrays import check_length, read_tensor  # noqa: PLC0415

        check_length(payload, self.wire_bytes(into.numel(), into.itemsize))
        numbers = self.count(into.numel()) * into.itemsize
        chosen = self.positions(payload[numbers:], into.numel())
        into.zero_()
        into[chosen] = read_tensor(payload[:numbers], into.dtype)

    def wire_bytes(self, size: int, itemsize: int = 4) -> int:
        """The numbers as they are, and their positions."""
        return self.count(size) * itemsize + self.position_bytes(size)

    def _encode(self, vector: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The positions and the payload."""
        import torch  # noqa: PLC0415 - a description loads without torch

        chosen, described = self.choose(vector, seed)
        numbers = vector.detach().index_select(0, chosen)
        weights = None if self.feeds_back else self.weights(described, vector.numel())
        if weights is not None:
            numbers *= weights
        return chosen, torch.cat([numbers.view(torch.uint8), described])


def count_of(fraction: float, size: int) -> int:
    """A fraction of `size` elements, at least one of them."""
    return min(size, max(1, round(fraction * size)))


def check_fraction(fraction: float) -> None:
    """Raise ValueError for a fraction that is none."""
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be above 0 and at most 1, got {fraction}")
