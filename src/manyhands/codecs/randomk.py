"""A random part of an update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from manyhands.codecs.selection import Selection, check_fraction, count_of

if TYPE_CHECKING:
    import torch

SEED_BYTES = 8


@dataclass(frozen=True, repr=False)
class RandomK(Selection):
    """Send a random part of the numbers; the receiver finds their positions from the seed.

    The n numbers are cut into k = max(1, round(fraction · n)) consecutive parts of w = n/k numbers,
    and one of each part is drawn. Without error feedback (the default) it is sent as w·x_i, so that
    the mean of what is decoded is x, with a variance of (w − 1)·‖x‖². With error feedback
    (`feedback=true`) it is sent as it is, which is biased, and the others stay in the residual; the
    weights would make the residual grow without bound. The seeds of successive updates have to
    differ.

    Use it to learn what `topk` gains by selecting, or where selecting takes too long: no positions
    are sent or searched. The numbers and 8 bytes for the seed: 0.04 bytes per element of float32
    for a fraction of 0.01.

    Example: `allreduce(codec=randomk(0.01, feedback=true))`

    Papers: Wangni et al., Gradient Sparsification for Communication-Efficient Distributed
    Optimization, NeurIPS 2018; Stich et al., Sparsified SGD with Memory, NeurIPS 2018 (feedback).
    """

    name: ClassVar[str] = "randomk"
    biased: ClassVar[bool] = False

    fraction: float = 0.01
    """The fraction of the numbers that is sent."""

    def __post_init__(self) -> None:
        check_fraction(self.fraction)

    @property
    def contracts(self) -> bool:
        """Only without the weights, which it has if there is no error feedback."""
        return self.feeds_back

    def count(self, size: int) -> int:
        """K."""
        return count_of(self.fraction, size)

    def position_bytes(self, size: int) -> int:
        """Bytes of the seed."""
        del size
        return SEED_BYTES

    def choose(self, vector: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A number of each part."""
        import torch  # noqa: PLC0415 - a description loads without torch

        described = bytearray((seed % 2**64).to_bytes(SEED_BYTES, "little"))
        sent = torch.frombuffer(described, dtype=torch.uint8)
        return self.positions(sent, vector.numel()), sent

    def positions(self, described: torch.Tensor, size: int) -> torch.Tensor:
        """Draw the positions again."""
        return self._draw(described, size)[0]

    def weights(self, described: torch.Tensor, size: int) -> torch.Tensor:
        """The lengths of the parts."""
        return self._draw(described, size)[1]

    def _draw(self, described: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        import torch  # noqa: PLC0415

        from manyhands.codecs.kernels.drawing import random_positions  # noqa: PLC0415

        seed = int.from_bytes(bytes(described.tolist()), "little")
        chosen, widths = random_positions(seed, self.count(size), size)
        return torch.from_numpy(chosen), torch.from_numpy(widths)
