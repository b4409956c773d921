"""What the messenger puts around a protocol's message, one small frame each.

Caller                                Responder
`Offer` (with the payload if small)   `Grant`, if a place for a large payload is free
`Chunk`, frame by frame               `CallStatus`, when asked again
                                      `Reply` (with the payload if small), `ReplyChunk` …

On one host an `Offer` may say in which shared memory its payload lies and its answer belongs, and
nothing more is sent.
"""

from __future__ import annotations

import msgspec

from manyhands.wire.message import WireError
from manyhands.wire.protocol_messages import Said

HEAD_LIMIT = 4096
"""Bytes in the longest envelope; payloads travel in a frame of their own."""
CHUNK = 1024 * 1024
"""Bytes of payload in one frame."""


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The base of every envelope. The calls of one caller are numbered by `number`."""


class SharedBytes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Bytes in the shared memory of a process on the same host."""

    pid: int
    descriptor: int
    offset: int
    size: int


class Offer(Envelope, frozen=True, tag=1):
    """A call, with `size` bytes of payload; asked again with the same `attempt`, it is a probe."""

    number: int
    attempt: int
    epoch: int
    size: int
    message: Said
    source: SharedBytes | None = None
    into: SharedBytes | None = None
    room: int = 0
    """Bytes of payload that the caller has room for in the answer."""


class Grant(Envelope, frozen=True, tag=2):
    """There is a place for the payload: send it."""

    number: int
    attempt: int


class Chunk(Envelope, frozen=True, tag=3):
    """A part of a call's payload, in the frame that follows."""

    number: int
    attempt: int
    offset: int


class CallStatus(Envelope, frozen=True, tag=4):
    """Where a call stands, for a caller that asks again."""

    number: int
    attempt: int
    received: int
    incarnation: int
    """The responder's life: another number means that it was restarted."""
    answered: bool = False
    """It was carried out, and the answer is on its way."""
    granted: bool = False
    """There is a place for the payload; a grant that said so may have been lost."""


class Reply(Envelope, frozen=True, tag=5):
    """The call was carried out; `size` bytes of payload come with it, under the number `reply`."""

    number: int
    reply: int
    size: int
    message: Said
    credit: bool = False
    """A place is kept for the next payload: send it without waiting for a grant."""
    placed: bool = False
    """The payload lies where the call wanted it."""
    held: float = 0.0
    """Seconds from the call's arrival until it was answered: not spent on the way."""


class ReplyChunk(Envelope, frozen=True, tag=6):
    """A part of a reply's payload, in the frame that follows."""

    reply: int
    offset: int


class Refusal(Envelope, frozen=True, tag=7):
    """The call comes from an epoch that is over, or does not fit."""

    number: int
    words: str


ToResponder = Offer | Chunk
ToCaller = Grant | CallStatus | Reply | ReplyChunk | Refusal

_encoder = msgspec.msgpack.Encoder()
_to_responder: msgspec.msgpack.Decoder[ToResponder] = msgspec.msgpack.Decoder(ToResponder)
_to_caller: msgspec.msgpack.Decoder[ToCaller] = msgspec.msgpack.Decoder(ToCaller)

seal = _encoder.encode
"""The frame of an envelope."""
_TOO_LONG = f"an envelope of {{}} bytes is over {HEAD_LIMIT}"
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises; msgspec lets Python's own error through where text is not UTF-8."""


def open_call(frame: bytes) -> ToResponder:
    """The envelope in a frame that a caller sent."""
    if len(frame) > HEAD_LIMIT:
        raise WireError(_TOO_LONG.format(len(frame)))
    try:
        return _to_responder.decode(frame)
    except _UNREADABLE as error:
        raise WireError(f"not an envelope: {error}") from None


def open_answer(frame: bytes) -> ToCaller:
    """The envelope in a frame that a responder sent."""
    if len(frame) > HEAD_LIMIT:
        raise WireError(_TOO_LONG.format(len(frame)))
    try:
        return _to_caller.decode(frame)
    except _UNREADABLE as error:
        raise WireError(f"not an envelope: {error}") from None
