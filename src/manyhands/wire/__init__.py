"""What travels between processes: fixed types, sizes capped before anything is parsed."""

from manyhands.wire.control import (
    Beat,
    Control,
    Goodbye,
    Hello,
    Pong,
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
    "Roll",
    "Status",
    "TraceChunk",
    "Warn",
    "WireError",
    "decode",
    "encode",
]
