"""What protocols say to each other. Tensors travel beside it, in frames of their own."""

from manyhands.wire.message import Message


class Push(Message, frozen=True):
    """An update or a replica, that came from parameters of `version`, made of `samples` samples."""

    version: int
    samples: int


class Pull(Message, frozen=True):
    """A request for parameters. Whoever makes it takes part from then on."""


class Change(Message, frozen=True):
    """Something to be added to the parameters, that came from parameters of `version`."""

    version: int


class Rest(Message, frozen=True):
    """There are no samples for this worker at present: nobody need wait for it."""


class Turn(Message, frozen=True):
    """A request to be the next, where one goes after the other."""


class Join(Message, frozen=True):
    """A worker is in a round, and has given its replica to the neighbours of these ranks."""

    round: int
    neighbours: tuple[int, ...]


class Mix(Message, frozen=True):
    """A worker wants its replica of a round mixed with those of the neighbours of these ranks."""

    round: int
    neighbours: tuple[int, ...]


class Arrived(Message, frozen=True):
    """The last answer has arrived: what was kept to give it again may be forgotten."""


class Parameters(Message, frozen=True):
    """Parameters, as they were after `version` updates; whether the update is among them."""

    version: int
    applied: bool = True


class Left(Message, frozen=True):
    """A worker is gone. Nobody sends this: a server notes it in its journal."""


Said = Push | Change | Pull | Rest | Turn | Join | Mix | Arrived | Left | Parameters
"""Every message there is; nothing else is ever decoded."""
