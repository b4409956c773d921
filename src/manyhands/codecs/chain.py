"""Two codecs, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from manyhands.codecs.codec import Codec, CodecError
from manyhands.codecs.lossless import Deflate
from manyhands.codecs.selection import Selection

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, repr=False)
class CodecChain(Codec):
    """Encode with one codec, then with another what that one would send.

    Two kinds of chains have a meaning:

    - The first codec selects numbers (`topk`, `randomk`, `exact`), and the second encodes those:
      `chain(topk(0.01), int8())`. The second may be a chain as well.
    - The second codec is `deflate`, and compresses the payload of any first codec without loss:
      `chain(int8(), deflate())`.

    All others are refused. `chain(exact(), deflate())` is lossless. A chain is biased if one of its
    codecs is, and then has error feedback, for both together. The size is that of the numbers in
    the second codec and the positions of the first one; for 1 % in 8 bits, 0.021 bytes per element.

    Example: `allreduce(codec=chain(topk(0.01), int8()))`

    Paper: Wang et al., CocktailSGD: Fine-tuning Foundation Models over 500Mbps Networks, ICML 2023
    (random numbers, then the largest, then 4 bits).
    """

    name: ClassVar[str] = "chain"
    # These hold for some chains; each value has its own.
    biased: ClassVar[bool] = True
    fixed_size: ClassVar[bool] = False

    a: Codec
    """The first codec."""
    b: Codec
    """The second codec."""

    def __post_init__(self) -> None:
        a, b = self.a, self.b
        if not isinstance(a, Selection) and not isinstance(b, Deflate):
            raise ValueError(  # noqa: TRY004 - what a text may say wrong is a ValueError
                f"{a.name} does not select numbers that {b.name} could encode: the first codec of "
                "a chain must be topk, randomk or exact, or the second one deflate"
            )
        if {a.feedback, b.feedback} != {"if_biased"}:
            raise ValueError(
                "error feedback is for the whole chain: give feedback to chain, and not to its "
                "codecs"
            )
        own = {
            "biased": a.biased or b.biased,
            "lossless": a.lossless and b.lossless,
            "fixed_size": a.fixed_size and b.fixed_size,
            "bounded_error": all(one.bounded_error or one.lossless for one in (a, b)),
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)  # a frozen value is set while it is made

    @property
    def contracts(self) -> bool:
        """If both do; the first one with the error feedback of the chain."""
        first = replace(self.a, feedback=self.feeds_back)
        return first.contracts and self.b.contracts

    def encode(self, vector: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """The second codec's payload, and the positions of the first one's numbers."""
        import torch  # noqa: PLC0415 - a description loads without torch

        if not isinstance(self.a, Selection):
            return self._deflate.encode_bytes(self.a.encode(vector, seed))
        chosen, described = self.a.choose(vector, seed)
        numbers = vector.detach().index_select(0, chosen)
        if not self.feeds_back:
            weights = self.a.weights(described, vector.numel())
            if weights is not None:
                numbers *= weights
        return torch.cat([self.b.encode(numbers, _next(seed)), described])

    def encode_rest(self, vector: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """Encode, and change the numbers that are sent only."""
        import torch  # noqa: PLC0415

        if not isinstance(self.a, Selection):
            return self._deflate.encode_bytes(self.a.encode_rest(vector, seed))
        if not self.feeds_back:  # numbers may be sent with weights
            return super().encode_rest(vector, seed)
        chosen, described = self.a.choose(vector, seed)
        numbers = vector.detach().index_select(0, chosen)
        payload = self.b.encode_rest(numbers, _next(seed))
        vector[chosen] = numbers
        return torch.cat([payload, described])

    def decode(self, payload: torch.Tensor, into: torch.Tensor) -> None:
        """Decode the second codec, then the first one."""
        size = into.numel()
        if not isinstance(self.a, Selection):
            most = self.a.wire_bytes(size, into.itemsize)
            self.a.decode(self._deflate.decode_bytes(payload, most), into)
            return
        end = payload.numel() - self.a.position_bytes(size)
        if end < 0:
            raise CodecError(
                f"expected at least {self.a.position_bytes(size)} bytes, got {payload.numel()}"
            )
        chosen = self.a.positions(payload[end:], size)
        numbers = into.new_empty(self.a.count(size))
        self.b.decode(payload[:end], numbers)
        into.zero_()
        into[chosen] = numbers

    def wire_bytes(self, size: int, itemsize: int = 4) -> int:
        """The largest size of the second payload, and the positions."""
        if not isinstance(self.a, Selection):
            return self.a.wire_bytes(size, itemsize) + 1
        return self.b.wire_bytes(self.a.count(size), itemsize) + self.a.position_bytes(size)

    @property
    def _deflate(self) -> Deflate:
        assert isinstance(self.b, Deflate)  # noqa: S101 - for the type checker
        return self.b


def _next(seed: int) -> int:
    """A seed whose random numbers are independent of those of the first codec."""
    return (seed * 6364136223846793005 + 1442695040888963407) % 2**64
