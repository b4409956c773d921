"""Numbers beyond a threshold, as their signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from manyhands.codecs.codec import Codec
from manyhands.codecs.kernels.sizes import most_position_bytes, scale_bytes

if TYPE_CHECKING:
    import torch

COUNT_BYTES = 8


@dataclass(frozen=True, repr=False)
class Threshold(Codec):
    """Send the positions and signs of the numbers of magnitude τ or more; ±τ is decoded.

    What is decoded is τ·sign(x_i) where |x_i| ≥ τ, and 0 elsewhere. The residual keeps x_i ∓ τ, so
    that a large number is sent in several updates. With a `density` instead of `tau`, τ is the
    magnitude that this fraction of the numbers exceeds, estimated from a sample of each update; at
    most twice as many are sent, and what is decoded for them is ± the mean of their magnitudes.

    Use it for the fewest bytes that are not fixed: updates in which little changes cost little. A
    number takes about 3 + log₂(n / k) bits if k of n are sent: 0.012 bytes per element for a
    density of 0.01. With `tau` the size may be anything up to two bits per element, and an update
    moves a number by at most τ: τ has to be above the mean of what is added to a number per update,
    or the residual grows without bound; a large τ delays.

    Example: `allreduce(codec=threshold(density=0.01))`

    Papers: Strom, Scalable Distributed DNN Training Using Commodity GPU Cloud Computing,
    Interspeech 2015 (tau); Dryden et al., Communication Quantization for Data-Parallel Training of
    Deep Neural Networks, MLHPC 2016 (density).
    """

    name: ClassVar[str] = "threshold"
    biased: ClassVar[bool] = True
    fixed_size: ClassVar[bool] = False

    tau: float | None = None
    """τ: the magnitude from which on numbers are sent."""
    density: float | None = None
    """The fraction of the numbers that is sent, from which τ is found."""

    def __post_init__(self) -> None:
        if (self.tau is None) == (self.density is None):
            raise ValueError("give either tau or density, such as threshold(density=0.01)")
        if self.tau is not None and not 0 < self.tau < float("inf"):
            raise ValueError(f"tau must be above 0, got {self.tau}")
        if self.density is not None and not 0 < self.density <= 1:
            raise ValueError(f"density must be above 0 and at most 1, got {self.density}")

    def encode(self, vector: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """The number of positions, the magnitude if τ is not given, the positions and the signs."""
        del seed
        return self._encode(vector)[0]

    def encode_rest(self, vector: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """Encode, and subtract what is decoded at the positions that are sent."""
        del seed
        payload, chosen, sent = self._encode(vector)
        vector[chosen] -= sent
        return payload

    def decode(self, payload: torch.Tensor, into: torch.Tensor) -> None:
        """Write ± the magnitude to the positions, and zeros elsewhere."""
        from manyhands.codecs.kernels import thresholds  # noqa: PLC0415 - loads torch

        most = self.most(into.numel())
        chosen, sent = thresholds.decode(payload, self.tau, most, into)
        into.zero_()
        into[chosen] = sent

    def wire_bytes(self, size: int, itemsize: int = 4) -> int:
        """The largest size, of as many numbers as may be sent."""
        head = COUNT_BYTES if self.density is None else COUNT_BYTES + scale_bytes(itemsize)
        return head + most_position_bytes(self.most(size), size, bits=1)

    def most(self, size: int) -> int:
        """The most numbers that are sent of `size`."""
        return size if self.density is None else min(size, 2 * max(1, round(self.density * size)))

    def _encode(self, vector: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The payload, the positions that are sent, and what is decoded there."""
        from manyhands.codecs.kernels import thresholds  # noqa: PLC0415

        return thresholds.encode(vector, self.tau, self.density, self.most(vector.numel()))
