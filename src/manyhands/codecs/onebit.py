"""One bit per number: its sign."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from manyhands.codecs.codec import Codec
from manyhands.codecs.kernels.sizes import block_bytes
from manyhands.codecs.quantised import check_block

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, repr=False)
class OneBit(Codec):
    """Send the sign of each number, and the mean magnitude of each block.

    s · sign(x_i) is decoded, with s = mean|x| over the block: the multiple of the signs with the
    smallest squared error. The sign of 0 is +. It is biased, and converges with error
    feedback only, which is on by default.

    Use it where the network is slow and every number of an update matters a little, as for momentum
    or dense gradients. One bit per element and 4 bytes per block: 0.129 bytes per element.

    Example: `allreduce(codec=onebit())`

    Papers: Seide et al., 1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
    Distributed Training of Speech DNNs, Interspeech 2014; the scale: Karimireddy et al., Error
    Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML 2019.
    """

    name: ClassVar[str] = "onebit"
    biased: ClassVar[bool] = True

    block: int = 1024
    """Elements that share a scale."""

    def __post_init__(self) -> None:
        check_block(self.block)

    def encode(self, vector: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """The scales of all blocks, then the signs, eight in a byte."""
        from manyhands.codecs.kernels import signs  # noqa: PLC0415 - loads torch

        del seed
        return signs.encode(vector, self.block, None)

    def encode_rest(self, vector: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """Encode and subtract piece by piece, while a piece is in the cache."""
        from manyhands.codecs.kernels import signs  # noqa: PLC0415

        del seed
        return signs.encode(vector, self.block, vector)

    def decode(self, payload: torch.Tensor, into: torch.Tensor) -> None:
        """Multiply the signs with the scales."""
        from manyhands.codecs.kernels import signs  # noqa: PLC0415

        signs.decode(payload, self.block, into)

    def wire_bytes(self, size: int, itemsize: int = 4) -> int:
        """A bit per element and a scale per block (of 8 bytes for float64, else of 4)."""
        return block_bytes(size, self.block, 8, itemsize)
