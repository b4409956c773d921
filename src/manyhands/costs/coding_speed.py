"""How fast codecs encode and decode: speeds that were measured, taken where none is given.

The speeds are those of `benchmarks/results/encoding.json`: medians over nine rounds on vectors of
40 MB, one thread of an Intel Xeon at 2.5 GHz. `python -m benchmarks.encoding --keep` measures them
again; a test holds the table to that file.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from manyhands.units import bandwidth

MACHINE: Final = "one core of an Intel Xeon at 2.5 GHz"
"""Where the speeds were measured."""
FREE: Final = "free"
"""The speed of codecs that take no time, as text."""
_MEASURED: Final = "measured"


class HasSpeed(Protocol):
    """A codec, as far as its speed is concerned."""

    @property
    def name(self) -> str:
        """Its name in texts."""

    @property
    def feeds_back(self) -> bool:
        """Whether senders keep what was not sent, which encoding then computes as well."""


@dataclass(frozen=True)
class CodingSpeed:
    """Bytes of a vector per second at which a core encodes it, and decodes it.

    >>> CodingSpeed(encode=1e9, decode=4e9).both
    1600000000.0
    """

    encode: float
    decode: float

    @property
    def both(self) -> float:
        """The speed of one that takes as long for both directions together."""
        return 2 / (1 / self.encode + 1 / self.decode)

    def scaled(self, factor: float) -> CodingSpeed:
        """A speed so many times as high."""
        return CodingSpeed(factor * self.encode, factor * self.decode)

    def __str__(self) -> str:
        if self.encode == self.decode:
            return f"{self.encode / 1e9:.3g} GB/s"
        return f"{self.encode / 1e9:.3g} GB/s encoding, {self.decode / 1e9:.3g} decoding"


MEASURED: Final[dict[str, tuple[float, float, float]]] = {
    "half": (6.59e9, 2.06e9, 6.05e9),
    "bfloat16": (5.69e9, 2.05e9, 6.37e9),
    "int8": (1.02e9, 0.692e9, 2.0e9),
    "int4": (0.915e9, 0.569e9, 1.41e9),
    "qsgd": (0.692e9, 0.504e9, 1.64e9),
    "ternary": (0.87e9, 0.596e9, 1.4e9),
    "onebit": (1.95e9, 0.949e9, 2.12e9),
    "threshold": (1.25e9, 0.989e9, 3.12e9),
    "topk": (1.19e9, 1.12e9, 3.5e9),
    "randomk": (8.31e9, 5.08e9, 3.65e9),
    "chunked_topk": (0.797e9, 0.665e9, 2.08e9),
    "chain": (1.42e9, 1.24e9, 3.77e9),
    "exact": (1.28e9, 1.14e9, 5.44e9),
    "deflate": (0.115e9, 0.114e9, 0.32e9),
}
"""By the name of a codec: encoding, encoding with error feedback, decoding, with the options of the
benchmark; of `chain` that of topk() and int8()."""


def measured_speed(codec: HasSpeed) -> CodingSpeed:
    """The measured speed of a codec; of one that was not measured, the middle of all that were.

    >>> from manyhands.codecs import int8, topk
    >>> str(measured_speed(topk(0.01))), str(measured_speed(int8()))
    ('1.12 GB/s encoding, 3.5 decoding', '1.02 GB/s encoding, 2 decoding')
    """
    parts = [part for part in (getattr(codec, "a", None), getattr(codec, "b", None)) if part]
    if any(part.name == "deflate" for part in parts):
        # Its first codec leaves few bytes to it, or many: as slow as if all went through both.
        speeds = [measured_speed(part) for part in parts]
        return CodingSpeed(
            1 / sum(1 / one.encode for one in speeds), 1 / sum(1 / one.decode for one in speeds)
        )
    known = MEASURED.get(codec.name)
    if known is None:
        return _middle(feeds_back=codec.feeds_back)
    encode, with_rest, decode = known
    return CodingSpeed(with_rest if codec.feeds_back else encode, decode)


@lru_cache(maxsize=2)
def _middle(*, feeds_back: bool) -> CodingSpeed:
    """The median speeds of all codecs that were measured."""
    encode, with_rest, decode = zip(*MEASURED.values(), strict=True)
    return CodingSpeed(
        statistics.median(with_rest if feeds_back else encode), statistics.median(decode)
    )


def is_measured(codec: HasSpeed) -> bool:
    """Whether the table has a codec.

    >>> from manyhands.codecs import half
    >>> is_measured(half())
    True
    """
    return codec.name in MEASURED


@dataclass(frozen=True)
class CodingSpeeds:
    """The speeds of all codecs of a run: one that was given, or each as it was measured.

    >>> from manyhands.codecs import topk
    >>> CodingSpeeds(1e9).encode_seconds(topk(), 500_000_000)
    0.5
    """

    given: float | None = None
    """Bytes per second, encoding and decoding, of all codecs; None for the measured speeds."""
    factor: float = 1.0
    """What the measured speeds are multiplied by."""

    @classmethod
    def read(cls, source: str | float | CodingSpeeds | None) -> CodingSpeeds:
        """Speeds from a text, as "2GB/s", "free" or "measured"; the last is the default.

        >>> CodingSpeeds.read("2GB/s").given, CodingSpeeds.read("free").given
        (2000000000.0, inf)
        """
        if isinstance(source, CodingSpeeds):
            return source
        if source is None:
            return cls()
        if isinstance(source, str) and source.strip() == FREE:
            return cls(math.inf)
        if isinstance(source, str) and source.strip() == _MEASURED:
            return cls()
        return cls(bandwidth(source))

    @property
    def are_free(self) -> bool:
        """Whether codecs take no time."""
        return self.given == math.inf

    def of(self, codec: HasSpeed) -> CodingSpeed:
        """The speed of a codec."""
        if self.given is not None:
            return CodingSpeed(self.given, self.given)
        return measured_speed(codec).scaled(self.factor)

    def encode_seconds(self, codec: HasSpeed, nbytes: float) -> float:
        """How long a core encodes a vector of so many bytes."""
        return nbytes / self.of(codec).encode

    def decode_seconds(self, codec: HasSpeed, nbytes: float) -> float:
        """How long a core decodes one."""
        return nbytes / self.of(codec).decode

    def __str__(self) -> str:
        if self.given is not None:
            return FREE if self.are_free else f"{self.given!r}B/s"
        return _MEASURED if self.factor == 1 else f"{_MEASURED} × {self.factor:g}"
