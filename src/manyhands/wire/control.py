"""Control messages between the coordinator and everybody else.

One frame per message, msgpack by msgspec, a closed set of types. A frame that is too long or is
none of them raises `WireError` and nothing else.
"""

from __future__ import annotations

import msgspec

from manyhands.wire.joining import Joining
from manyhands.wire.leasing import Leasing, Word
from manyhands.wire.message import Message, WireError

LIMIT = 1024 * 1024
"""Bytes in the longest control message."""


class Hello(Message, frozen=True):
    """A process reports for duty."""

    role: str
    rank: int
    host: str
    pid: int
    boot: str
    address: str = ""
    """Where other hosts reach the server in this process, if they do."""
    life: int = 0
    """Which incarnation of the process it is; a successor has a greater number."""


class Roll(Message, frozen=True):
    """The coordinator's word that all workers have joined: the epoch of these members.

    It goes to every worker, so it does not list them: that would be the square of their number.
    """

    epoch: int
    servers: tuple[tuple[str, str, str], ...] = ()
    """(name, host, address) of each that other hosts reach."""
    over: bool = False
    """Whether the run is over, so that a worker that comes back has nothing to do."""


class Beat(Message, frozen=True):
    """A heartbeat: where a worker is."""

    sent: float
    """The sender's clock."""
    step: int
    samples: int
    loss: float | None
    phase: str
    line: str
    fences: int = 0
    """How many fences the sender has heard."""


class Pong(Message, frozen=True):
    """The answer to a heartbeat, from which the sender estimates how far its clock is off."""

    sent: float
    there: float


class TraceChunk(Message, frozen=True):
    """Lines of the sender's trace."""

    lines: bytes


class Goodbye(Message, frozen=True):
    """A process has done its work and leaves on purpose."""

    step: int
    samples: int


class Status(Message, frozen=True):
    """For the agent: how far the run is."""

    epoch: int
    joined: int
    expected: int
    samples: int
    loss: float | None
    started: bool
    phase: str = ""
    """What the first worker is doing."""
    missing: str = ""
    """Who has not joined, by host."""
    outside: str = ""
    """Where other hosts may join."""
    returned: tuple[str, ...] = ()
    """Workers that were lost and are here again."""


class Warn(Message, frozen=True):
    """For the agent: words that the user should see now."""

    words: str


Control = (
    Hello | Roll | Beat | Pong | TraceChunk | Goodbye | Status | Warn | Leasing | Word | Joining
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)


def encode(message: Control) -> bytes:
    """The frame of a message."""
    frame = _encoder.encode(message)
    if len(frame) > LIMIT:
        raise WireError(f"a {type(message).__name__} of {len(frame)} bytes is over {LIMIT}")
    return frame


def decode(frame: bytes) -> Control:
    """The message in a frame."""
    if len(frame) > LIMIT:
        raise WireError(f"a frame of {len(frame)} bytes is over {LIMIT}")
    try:
        return _decoder.decode(frame)
    # msgspec lets Python's own error through where text is not UTF-8.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a control message: {error}") from None
