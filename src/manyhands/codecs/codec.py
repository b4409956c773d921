"""The contract of a codec: a vector of numbers becomes a payload of bytes, and back.

A codec has no state: a server that is restarted encodes its answers again, and has to send the same
bytes (`docs/decisions/0056-codecs-are-values.md`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.notation import Value

if TYPE_CHECKING:
    import torch


class CodecError(ValueError):
    """A payload that no encoder of this codec and size can have written."""


@dataclass(frozen=True, repr=False)
class Codec(Value, ABC):
    """Base class of codecs. A codec is a value without state; all methods are pure functions.

    Vectors are one-dimensional, contiguous tensors of floating-point numbers in the host's memory.
    Payloads are one-dimensional tensors of uint8. A payload has no header: the receiver knows the
    codec, the dtype and the number of elements.
    """

    biased: ClassVar[bool]
    """Whether the mean of what is decoded differs from what was encoded."""
    lossless: ClassVar[bool] = False
    """Whether what is decoded equals what was encoded, bit for bit."""
    fixed_size: ClassVar[bool] = True
    """Whether `wire_bytes` is the exact size of a payload, and not only its largest size."""
    bounded_error: ClassVar[bool] = False
    """Whether every number is decoded with an error of at most a fraction of the largest number of
    its block. Others leave numbers out, or send their signs: they suit changes, which add up, and
    not parameters."""

    feedback: bool | Literal["if_biased"] = field(default="if_biased", kw_only=True)
    """Whether a sender keeps what was not sent and adds it to the next update (error feedback).
    By default it does if the codec is biased."""

    @property
    def feeds_back(self) -> bool:
        """Whether senders use error feedback with this codec."""
        return self.biased if isinstance(self.feedback, str) else self.feedback

    @property
    def contracts(self) -> bool:
        """Whether the error of a vector is smaller than the vector, in the mean over seeds.

        If what was not sent is part of the next vector, it shrinks under such a codec, and grows
        without bound under others.
        """
        return True

    @abstractmethod
    def encode(self, vector: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """The payload of a vector, which is not changed.

        The same vector and seed give the same payload on every machine: a server that is restarted
        encodes its answers again. Only codecs with random rounding or selection use the seed.
        """

    @abstractmethod
    def decode(self, payload: torch.Tensor, into: torch.Tensor) -> None:
        """Write the decoded vector to `into`, every element of it.

        Raises:
            CodecError: the payload is none of a vector of this size and dtype. Nothing that grows
                with numbers in the payload was allocated before.
        """

    @abstractmethod
    def wire_bytes(self, size: int, itemsize: int = 4) -> int:
        """Bytes of the payload of `size` elements of `itemsize` bytes, or their upper bound."""

    def encode_rest(self, vector: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """Encode a vector and leave in it what was not sent: vector ← vector − decoded.

        A codec overrides it where this takes less than decoding and subtracting.
        """
        payload = self.encode(vector, seed)
        sent = vector.new_empty(vector.shape)
        self.decode(payload, sent)
        vector.sub_(sent)
        return payload
