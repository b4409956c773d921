"""What protocols say to each other. Tensors travel beside it, in frames of their own."""

from manyhands.wire.message import Message


class Push(Message, frozen=True):
    """An update or a replica, that came from parameters of `version`, made of `samples` samples."""

    version: int
    samples: int
    dealt: int = 0
    """For an update: samples of the run before its global batch, which decides what it counts."""


class Pull(Message, frozen=True):
    """A request for parameters. Whoever makes it takes part from then on."""


class Change(Message, frozen=True):
    """Something to be added to the parameters, that came from parameters of `version`."""

    version: int


class Rest(Message, frozen=True):
    """There are no samples for this worker at present: nobody need wait for it."""


class Turn(Message, frozen=True):
    """A request to be the next, where one goes after the other."""


class Parameters(Message, frozen=True):
    """Parameters, as they were after `version` updates; whether the update is among them."""

    version: int
    applied: bool = True


class Left(Message, frozen=True):
    """A worker is gone. Nobody sends this: a server notes it in its journal."""


Said = Push | Change | Pull | Rest | Turn | Left | Parameters
"""Every message there is; nothing else is ever decoded."""
