"""What every control message is made from."""

import msgspec


class WireError(ValueError):
    """A frame that is no message of ours."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """The base of every control message; the class name is its tag."""
