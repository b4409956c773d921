"""Envelopes of calls and replies: small frames around the messages of a protocol.

Caller                                Responder
`Offer` (with the payload if small)   `Grant`, if a slot for a large payload is free
`Chunk`, frame by frame               `CallStatus`, when asked again
                                      `Reply` (with the payload if small), `ReplyChunk` …

On one host an `Offer` may name the shared memory of its payload and of the answer's payload; then
no payload is sent.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from manyhands.wire.message import WireError
from manyhands.wire.protocol_messages import Said

HEAD_LIMIT = 4096
"""The most bytes in an envelope; payloads are sent in separate frames."""
CHUNK = 1024 * 1024
"""Bytes of payload in one frame."""


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Base of all envelopes. The calls of one caller are numbered by `number`."""


class SharedBytes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Bytes in the shared memory of a process on the same host."""

    pid: int
    descriptor: int
    offset: int
    size: int


class Offer(Envelope, frozen=True, tag=1):
    """A call with `size` bytes of payload; sent again with the same `attempt`, it is a probe."""

    number: int
    attempt: int
    epoch: int
    size: int
    message: Said
    source: SharedBytes | None = None
    into: SharedBytes | None = None
    room: int = 0
    """Size of the caller's buffer for the payload of the answer, in bytes."""
    phase: Annotated[int, msgspec.Meta(ge=0, le=3)] = 1
    """The caller's phase, for the responder's count of bytes: an index into `trace.PHASES`."""


class Grant(Envelope, frozen=True, tag=2):
    """A slot for the payload is free: send it."""

    number: int
    attempt: int


class Chunk(Envelope, frozen=True, tag=3):
    """A part of a call's payload, in the frame that follows."""

    number: int
    attempt: int
    offset: int


class CallStatus(Envelope, frozen=True, tag=4):
    """The state of a call, in answer to a probe."""

    number: int
    attempt: int
    received: int
    incarnation: int
    """Incarnation of the responder: a different number means that it was restarted."""
    answered: bool = False
    """Whether it was executed, and the answer is on its way."""
    granted: bool = False
    """Whether a slot is reserved for the payload; the grant may have been lost."""


class Reply(Envelope, frozen=True, tag=5):
    """The answer to a call, with `size` bytes of payload under the number `reply`."""

    number: int
    reply: int
    size: int
    message: Said
    credit: bool = False
    """Whether a slot is reserved for the next payload, which needs no grant then."""
    placed: bool = False
    """Whether the payload was written to the caller's shared memory."""
    held: float = 0.0
    """Seconds from the call's arrival until it was answered, without transfer."""


class ReplyChunk(Envelope, frozen=True, tag=6):
    """A part of a reply's payload, in the frame that follows."""

    reply: int
    offset: int


class Refusal(Envelope, frozen=True, tag=7):
    """The call is refused: its epoch is over, or its payload does not fit."""

    number: int
    words: str


ToResponder = Offer | Chunk
ToCaller = Grant | CallStatus | Reply | ReplyChunk | Refusal

_encoder = msgspec.msgpack.Encoder()
_to_responder: msgspec.msgpack.Decoder[ToResponder] = msgspec.msgpack.Decoder(ToResponder)
_to_caller: msgspec.msgpack.Decoder[ToCaller] = msgspec.msgpack.Decoder(ToCaller)

seal = _encoder.encode
"""Encode an envelope as a frame."""
_TOO_LONG = f"an envelope has {{}} bytes, the limit is {HEAD_LIMIT}"
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of decoding; msgspec does not wrap Python's error for text that is not UTF-8."""


def open_call(frame: bytes) -> ToResponder:
    """Decode the envelope in a frame from a caller."""
    if len(frame) > HEAD_LIMIT:
        raise WireError(_TOO_LONG.format(len(frame)))
    try:
        return _to_responder.decode(frame)
    except _UNREADABLE as error:
        raise WireError(f"not an envelope: {error}") from None


def open_answer(frame: bytes) -> ToCaller:
    """Decode the envelope in a frame from a responder."""
    if len(frame) > HEAD_LIMIT:
        raise WireError(_TOO_LONG.format(len(frame)))
    try:
        return _to_caller.decode(frame)
    except _UNREADABLE as error:
        raise WireError(f"not an envelope: {error}") from None
