"""Base of all control messages, and the error for frames that are none."""

import msgspec


class WireError(ValueError):
    """A frame is not a valid message."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Base of all control messages; the class name is its tag."""
