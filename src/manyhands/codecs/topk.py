"""The largest numbers of an update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from manyhands.codecs.kernels.sizes import position_bytes
from manyhands.codecs.selection import Selection, check_fraction, count_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, repr=False)
class TopK(Selection):
    """Send only the largest numbers of an update, as they are, with their positions.

    Of n numbers, the k = max(1, round(fraction · n)) of largest magnitude are sent; of equal ones,
    those that come first. The others stay in the sender's residual until they have grown: without
    error feedback they would be lost. NaN and infinity are the largest and are sent.

    Use it on slow networks. For n/k = 100, a position takes 8.6 bits, in all 0.051 bytes per
    element of float32, 79 times fewer. `chain` sends the numbers in fewer bytes, too.

    Example: `allreduce(codec=topk(0.01))`

    Papers: Aji and Heafield, Sparse Communication for Distributed Gradient Descent, EMNLP 2017; Lin
    et al., Deep Gradient Compression, ICLR 2018; Stich et al., Sparsified SGD with Memory, NeurIPS
    2018.
    """

    name: ClassVar[str] = "topk"
    biased: ClassVar[bool] = True

    fraction: float = 0.01
    """The fraction of the numbers that is sent."""

    def __post_init__(self) -> None:
        check_fraction(self.fraction)

    def count(self, size: int) -> int:
        """K."""
        return count_of(self.fraction, size)

    def position_bytes(self, size: int) -> int:
        """About 2 + log₂(n / k) bits per position."""
        return position_bytes(self.count(size), size)

    def choose(self, vector: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The k largest; the seed is not used."""
        import torch  # noqa: PLC0415 - a description loads without torch

        from manyhands.codecs.kernels.arrays import numbers  # noqa: PLC0415
        from manyhands.codecs.kernels.largest import largest  # noqa: PLC0415
        from manyhands.codecs.kernels.positions import write_positions  # noqa: PLC0415

        del seed
        chosen = largest(numbers(vector), self.count(vector.numel()))
        described = write_positions(chosen, vector.numel())
        return torch.from_numpy(chosen), torch.from_numpy(described)

    def positions(self, described: torch.Tensor, size: int) -> torch.Tensor:
        """Read the positions."""
        import torch  # noqa: PLC0415

        from manyhands.codecs.kernels.arrays import raw  # noqa: PLC0415
        from manyhands.codecs.kernels.positions import read_positions  # noqa: PLC0415

        return torch.from_numpy(read_positions(raw(described), self.count(size), size))
