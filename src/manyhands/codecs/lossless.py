"""Codecs that lose nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from manyhands.codecs.codec import Codec
from manyhands.codecs.selection import Selection

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, repr=False)
class Exact(Selection):
    """Send all numbers as they are.

    Use it as a baseline that takes the same path through a strategy as the other codecs, and as the
    first part of a lossless chain. As many bytes as the numbers have in memory.

    Example: `allreduce(codec=exact())`
    """

    name: ClassVar[str] = "exact"
    biased: ClassVar[bool] = False
    lossless: ClassVar[bool] = True

    def encode(self, vector: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """A copy of the numbers."""
        import torch  # noqa: PLC0415 - a description loads without torch

        del seed
        return vector.detach().clone().view(torch.uint8)

    def encode_rest(self, vector: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """Nothing is left."""
        payload = self.encode(vector, seed)
        vector.zero_()
        return payload

    def decode(self, payload: torch.Tensor, into: torch.Tensor) -> None:
        """Copy the numbers."""
        from manyhands.codecs.kernels.arrays import check_length, read_tensor  # noqa: PLC0415

        check_length(payload, self.wire_bytes(into.numel(), into.itemsize))
        into.copy_(read_tensor(payload, into.dtype))

    def count(self, size: int) -> int:
        """All numbers."""
        return size

    def position_bytes(self, size: int) -> int:
        """None: all positions are sent."""
        del size
        return 0

    def choose(self, vector: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All positions."""
        import torch  # noqa: PLC0415

        del seed
        return torch.arange(vector.numel()), torch.empty(0, dtype=torch.uint8)

    def positions(self, described: torch.Tensor, size: int) -> torch.Tensor:
        """All positions."""
        import torch  # noqa: PLC0415

        del described
        return torch.arange(size)


@dataclass(frozen=True, repr=False)
class Deflate(Codec):
    """Compress the numbers without loss, with zlib.

    The bytes of all numbers are sorted by their place within a number, and each place is compressed
    if that makes it smaller. Signs and exponents of gradients are similar to each other and take
    about three quarters of their bytes; the lower bits are nearly random and are sent as they are.

    Use it where nothing may be lost and the network is slower than about 50 MB/s, or after another
    codec: `chain(int8(), deflate())`. It is slow. At most one byte more than the numbers have; the
    bytes of two builds of zlib may differ, and are decoded to the same numbers.

    Example: `allreduce(codec=deflate())`

    Reference: Deutsch, DEFLATE Compressed Data Format Specification, RFC 1951, 1996.
    """

    name: ClassVar[str] = "deflate"
    biased: ClassVar[bool] = False
    lossless: ClassVar[bool] = True
    fixed_size: ClassVar[bool] = False

    level: int = 1
    """From 1, fast, to 9, small."""

    def __post_init__(self) -> None:
        if not 1 <= self.level <= 9:
            raise ValueError(f"level must be from 1 to 9, got {self.level}")

    def encode(self, vector: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """The compressed bytes of each place."""
        import torch  # noqa: PLC0415 - a description loads without torch

        from manyhands.codecs.kernels.arrays import raw  # noqa: PLC0415
        from manyhands.codecs.kernels.deflating import deflate_numbers  # noqa: PLC0415

        del seed
        data = raw(vector.view(torch.uint8))
        return torch.from_numpy(deflate_numbers(data, vector.itemsize, self.level))

    def encode_rest(self, vector: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """Nothing is left."""
        payload = self.encode(vector, seed)
        vector.zero_()
        return payload

    def decode(self, payload: torch.Tensor, into: torch.Tensor) -> None:
        """Decompress the bytes."""
        import torch  # noqa: PLC0415

        from manyhands.codecs.kernels.arrays import raw  # noqa: PLC0415
        from manyhands.codecs.kernels.deflating import inflate_numbers  # noqa: PLC0415

        data = inflate_numbers(raw(payload), into.itemsize, into.numel())
        into.view(torch.uint8).copy_(torch.from_numpy(data))

    def wire_bytes(self, size: int, itemsize: int = 4) -> int:
        """At most one byte more than the numbers have."""
        return size * itemsize + 1

    def encode_bytes(self, payload: torch.Tensor) -> torch.Tensor:
        """The compressed payload of another codec, at most one byte more."""
        import torch  # noqa: PLC0415

        from manyhands.codecs.kernels.arrays import raw  # noqa: PLC0415
        from manyhands.codecs.kernels.deflating import deflate_bytes  # noqa: PLC0415

        return torch.from_numpy(deflate_bytes(raw(payload), self.level))

    def decode_bytes(self, payload: torch.Tensor, most: int) -> torch.Tensor:
        """The payload of another codec, which has at most `most` bytes."""
        import torch  # noqa: PLC0415

        from manyhands.codecs.kernels.arrays import raw  # noqa: PLC0415
        from manyhands.codecs.kernels.deflating import inflate_bytes  # noqa: PLC0415

        return torch.from_numpy(inflate_bytes(raw(payload), most).copy())
