"""Messages between processes: fixed types, with size limits that are checked before parsing."""

from manyhands.wire.control import (
    Beat,
    Control,
    Goodbye,
    Hello,
    Pong,
    Repeat,
    Roll,
    Status,
    TraceChunk,
    Warn,
    decode,
    encode,
)
from manyhands.wire.message import WireError

__all__ = [
    "Beat",
    "Control",
    "Goodbye",
    "Hello",
    "Pong",
    "Repeat",
    "Roll",
    "Status",
    "TraceChunk",
    "Warn",
    "WireError",
    "decode",
    "encode",
]
