"""Codecs of lower precision: every number is rounded to 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from manyhands.codecs.codec import Codec, CodecError
from manyhands.codecs.kernels.sizes import PIECE

if TYPE_CHECKING:
    import torch


class Rounded(Codec):
    """Every number is rounded to the nearest of another dtype."""

    biased: ClassVar[bool] = True
    bounded_error: ClassVar[bool] = True
    dtype: ClassVar[str]
    """The name of torch's dtype; torch is loaded only when something is encoded."""

    def encode(self, vector: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """The rounded numbers."""
        import torch  # noqa: PLC0415 - a description loads without torch

        del seed
        # A copy also of numbers that have this dtype: the caller may change the vector.
        return vector.detach().to(getattr(torch, self.dtype), copy=True).view(torch.uint8)

    def encode_rest(self, vector: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """Encode, and subtract piece by piece, without another vector in memory."""
        import torch  # noqa: PLC0415

        payload = self.encode(vector, seed)
        rounded = payload.view(getattr(torch, self.dtype))
        for start in range(0, vector.numel(), PIECE):
            piece = slice(start, start + PIECE)
            vector[piece].sub_(rounded[piece].to(vector.dtype))
        return payload

    def decode(self, payload: torch.Tensor, into: torch.Tensor) -> None:
        """Widen the numbers."""
        if payload.numel() != self.wire_bytes(into.numel()):
            raise CodecError(
                f"expected {self.wire_bytes(into.numel())} bytes, got {payload.numel()}"
            )
        import torch  # noqa: PLC0415

        if payload.storage_offset() % 2:
            payload = payload.clone()  # a view of wider numbers has to be aligned
        into.copy_(payload.view(getattr(torch, self.dtype)))

    def wire_bytes(self, size: int, itemsize: int = 4) -> int:
        """Two bytes per element."""
        del itemsize
        return 2 * size


@dataclass(frozen=True, repr=False)
class Half(Rounded):
    """Send numbers in 16 bits, with 11 significant ones (IEEE half precision).

    Numbers beyond 65,504 become infinite; `bfloat16` has the range of float32.

    Example: `allreduce(codec=half())`
    """

    name: ClassVar[str] = "half"
    dtype: ClassVar[str] = "float16"


@dataclass(frozen=True, repr=False)
class BFloat16(Rounded):
    """Send numbers in 16 bits, with 8 significant ones and the range of float32.

    Example: `allreduce(codec=bfloat16())`
    """

    name: ClassVar[str] = "bfloat16"
    dtype: ClassVar[str] = "bfloat16"
