"""Frames: the bytes of a push or an answer under a codec.

A frame has a head and a body. The head names a reference, a vector that both sides have, and the
form of the body: empty, the whole shard, a vector that is refused, or encoded vectors (one per
dtype) with the buffers behind them, which are not encoded.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import torch

from manyhands.codecs import CodecError
from manyhands.protocols.compression.coding import head_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.codecs import Codec
    from manyhands.codecs.kernels.finite import NotFinite
    from manyhands.parameters import Shard


class Form(IntEnum):
    """The body of a frame."""

    EMPTY = 0
    WHOLE = 1
    """The bytes of the shard, which become a reference."""
    CODED = 2
    PLAIN = 3
    """The bytes of something else, which become no reference."""
    NOT_FINITE = 4
    """Nothing: the vector has NaN (length 1) or infinity (length 2), and is not applied."""


_FOUND: tuple[NotFinite, ...] = ("", "NaN", "infinity")


@dataclass(frozen=True)
class Frame:
    """A frame that was received."""

    reference: int
    form: Form
    lengths: tuple[int, ...]
    body: torch.Tensor

    @property
    def not_finite(self) -> NotFinite:
        """What the vector has that is no finite number."""
        if self.form is not Form.NOT_FINITE:
            return ""
        return "infinity" if 2 in self.lengths else "NaN"

    def vectors(self, codec: Codec, shard: Shard) -> list[torch.Tensor]:
        """The decoded vectors, one per dtype of the shard."""
        at, decoded = 0, []
        for flat, length in zip(shard.flat_by_dtype, self.lengths, strict=True):
            vector = torch.empty(flat.stop, dtype=flat.dtype)
            codec.decode(self.body[at : at + length], vector)
            decoded.append(vector)
            at += length
        return decoded

    def copy_buffers(self, shard: Shard, into: torch.Tensor) -> None:
        """Copy the buffers of an encoded body to the bytes of a shard."""
        at = sum(self.lengths)
        for buffer in shard.buffers:
            buffer.bytes(into).copy_(self.body[at : at + buffer.nbytes])
            at += buffer.nbytes


def whole(shard: Shard, reference: int, body: torch.Tensor | None, form: Form) -> torch.Tensor:
    """A frame with an empty or whole body."""
    size = head_bytes(shard)
    frame = torch.empty(size + (0 if body is None else body.numel()), dtype=torch.uint8)
    _write_head(frame, shard, reference, form, [0] * len(shard.flat_by_dtype))
    if body is not None:
        frame[size:].copy_(body)
    return frame


def refused(shard: Shard, reference: int, found: NotFinite) -> torch.Tensor:
    """A frame in place of a vector that is not finite."""
    frame = torch.empty(head_bytes(shard), dtype=torch.uint8)
    lengths = [_FOUND.index(found)] * len(shard.flat_by_dtype)
    _write_head(frame, shard, reference, Form.NOT_FINITE, lengths)
    return frame


def coded(
    shard: Shard, reference: int, payloads: Sequence[torch.Tensor], source: torch.Tensor
) -> torch.Tensor:
    """A frame with encoded vectors, and the buffers of `source`."""
    buffers = [buffer.bytes(source) for buffer in shard.buffers]
    size, parts = head_bytes(shard), [*payloads, *buffers]
    frame = torch.empty(size + sum(part.numel() for part in parts), dtype=torch.uint8)
    _write_head(frame, shard, reference, Form.CODED, [part.numel() for part in payloads])
    for part in parts:
        frame[size : size + part.numel()].copy_(part)
        size += part.numel()
    return frame


def read(shard: Shard, payload: torch.Tensor) -> Frame:
    """The frame of a payload, which may be longer than its body if it is a buffer.

    Raises:
        CodecError: it is no frame of this shard.
    """
    size = head_bytes(shard)
    if payload.numel() < size:
        raise CodecError(f"expected a frame of at least {size} bytes, got {payload.numel()}")
    count = len(shard.flat_by_dtype)
    head = payload[:size].numpy().tobytes()
    reference, form, *lengths = struct.unpack_from(f"<QI{count}I", head)
    if form >= len(Form):
        raise CodecError(f"expected a form of 0 to {len(Form) - 1}, got {form}")
    expected = {
        Form.EMPTY: 0,
        Form.NOT_FINITE: 0,
        Form.CODED: sum(lengths) + sum(buffer.nbytes for buffer in shard.buffers),
    }.get(Form(form), shard.nbytes)
    body = payload[size : size + expected]
    if body.numel() != expected:
        raise CodecError(f"expected a frame of {size + expected} bytes, got {payload.numel()}")
    return Frame(reference, Form(form), tuple(lengths), body)


def _write_head(
    frame: torch.Tensor, shard: Shard, reference: int, form: Form, lengths: Sequence[int]
) -> None:
    head = struct.pack(f"<QI{len(lengths)}I", reference, form, *lengths)
    head = head.ljust(head_bytes(shard), b"\0")
    frame[: len(head)].copy_(torch.frombuffer(bytearray(head), dtype=torch.uint8))


def number(frame: torch.Tensor, reference: int) -> None:
    """Write another reference into the head of a frame."""
    frame[:8].copy_(torch.frombuffer(bytearray(struct.pack("<Q", reference)), dtype=torch.uint8))


def clear(frame: torch.Tensor, shard: Shard) -> None:
    """Make a buffer an empty frame: an answer without a payload writes nothing to it."""
    _write_head(frame, shard, 0, Form.EMPTY, [0] * len(shard.flat_by_dtype))
