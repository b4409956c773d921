"""Control messages between the coordinator and the other processes.

One frame per message, msgpack by msgspec, a closed set of types. A frame that is too long or is
not a message raises `WireError` and no other exception.
"""

from __future__ import annotations

import msgspec

from manyhands.wire.joining import Joining
from manyhands.wire.leasing import Fence, Leasing, Rejoined, Word
from manyhands.wire.message import Message, WireError
from manyhands.wire.regrouping import GroupReport, Regroup

LIMIT = 1024 * 1024
"""Bytes in the longest control message."""


class Hello(Message, frozen=True):
    """A process joins the run."""

    role: str
    rank: int
    host: str
    pid: int
    boot: str
    address: str = ""
    """Address at which other hosts connect to the server in this process, if they do."""
    life: int = 0
    """Incarnation number of the process; a successor has a greater one."""


class Roll(Message, frozen=True):
    """From the coordinator: all workers have joined; the epoch of this membership.

    It is sent to every worker, so it does not list the workers: the total size would grow with the
    square of their number.
    """

    epoch: int
    servers: tuple[tuple[str, str, str], ...] = ()
    """(name, host, address) of each server to which other hosts connect."""
    over: bool = False
    """Whether the run is over, so that a restarted worker has nothing to do."""
    returns: bool = False
    """Whether the receiver was restarted, and others have trained meanwhile."""
    notices: tuple[Fence | Rejoined, ...] = ()
    """With peer servers: the last fence or return of every worker that was ever lost."""
    noted: int = 0
    """Number of all fences and returns so far, which these stand for."""


class Beat(Message, frozen=True):
    """A heartbeat, with the progress of a worker."""

    sent: float
    """Time of the sender's clock."""
    step: int
    samples: int
    loss: float | None
    phase: str
    line: str
    fences: int = 0
    """Number of fences that the sender has received."""
    marks: int = 0
    """A number that changes whenever the sender gets on, also within a step."""
    group: GroupReport | None = None
    """The group of a worker that may be replaced; None under other strategies."""


class Pong(Message, frozen=True):
    """The answer to a heartbeat, from which the sender estimates the offset of its clock."""

    sent: float
    there: float
    life: int = 0
    """Incarnation number of the coordinator that answers."""


class TraceChunk(Message, frozen=True):
    """Lines of the sender's trace."""

    lines: bytes


class Goodbye(Message, frozen=True):
    """A process has finished and leaves the run."""

    step: int
    samples: int
    failed: bool = False
    """Whether it leaves because of an error."""


class Status(Message, frozen=True):
    """To the agents: the progress of the run."""

    epoch: int
    joined: int
    expected: int
    samples: int
    loss: float | None
    started: bool
    phase: str = ""
    """The phase of the first worker."""
    missing: str = ""
    """Ranks that have not joined, by host."""
    outside: str = ""
    """Address at which other hosts join."""
    returned: tuple[str, ...] = ()
    """Workers that were lost and have rejoined."""


class Repeat(Message, frozen=True):
    """The sender may have missed messages: repeat those that still hold.

    The coordinator asks a member that it does not know for its `Hello`. The agent asks a restarted
    coordinator which hosts are lost or have returned.
    """


class Warn(Message, frozen=True):
    """To the agent: a message to show to the user."""

    words: str


Control = (
    Hello
    | Roll
    | Beat
    | Pong
    | TraceChunk
    | Goodbye
    | Status
    | Repeat
    | Warn
    | Regroup
    | Leasing
    | Word
    | Joining
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)


def encode(message: Control) -> bytes:
    """Encode a message as a frame."""
    frame = _encoder.encode(message)
    if len(frame) > LIMIT:
        raise WireError(f"a {type(message).__name__} has {len(frame)} bytes, the limit is {LIMIT}")
    return frame


def decode(frame: bytes) -> Control:
    """Decode the message in a frame."""
    if len(frame) > LIMIT:
        raise WireError(f"a frame has {len(frame)} bytes, the limit is {LIMIT}")
    try:
        return _decoder.decode(frame)
    # msgspec does not wrap Python's own error for text that is not UTF-8.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a control message: {error}") from None
