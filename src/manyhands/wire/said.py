"""What protocols say to each other. Tensors travel beside it, in frames of their own."""

from manyhands.wire.message import Message


class Push(Message, frozen=True):
    """An update, computed from parameters of `version`, made of `samples` samples."""

    version: int
    samples: int


class Pull(Message, frozen=True):
    """A request for parameters."""


class Parameters(Message, frozen=True):
    """Parameters, as they were after `version` updates."""

    version: int


Said = Push | Pull | Parameters
"""Every message there is; nothing else is ever decoded."""
