"""What protocols say to each other. Tensors travel beside it, in frames of their own."""

from typing import Literal, TypeAlias

from manyhands.wire.message import Message

Errand: TypeAlias = Literal["", "meet", "join", "rest", "done"]
"""Where servers have servers: to meet the others, to join them again, to tell them that nobody
need wait; and that it is done."""


class Push(Message, frozen=True):
    """An update or a replica, that came from parameters of `version`, made of `samples` samples.

    These may be said to be a part of `total`; a replica may have a `mass`.
    """

    version: int
    samples: int
    dealt: int = 0
    """For an update: samples of the run before its global batch, which decides what it counts."""
    total: int = 0
    mass: float = 0.0
    number: int = 0
    """Of a sum that one brings for several: which of theirs it is, so that it counts once."""


class Pull(Message, frozen=True):
    """A request for parameters. Whoever makes it takes part from then on, unless it only looks."""

    looks: bool = False
    number: int = 0
    """Where sums are brought for several: theirs before this one are void if they come later."""


class Change(Message, frozen=True):
    """Something to be added to the parameters, that came from parameters of `version`.

    It may come from an `errand`. A `share` of what is then there may be wanted back.
    """

    version: int
    errand: Errand = ""
    share: float = 0.0
    number: int = 0
    """As in the `Pull` that the parameters came from."""


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
    """Parameters, as they were after `version` updates; whether the update is among them.

    With an `errand` they are to be carried further, as something made of `samples` samples. They
    may have a `mass`.
    """

    version: int
    applied: bool = True
    errand: Errand = ""
    samples: int = 0
    mass: float = 1.0
    dealt: int = 0
    """Of a sum of updates that is to be carried further: as in `Push`."""
    number: int = 0
    """The same."""


class Left(Message, frozen=True):
    """A worker is gone. Nobody sends this: a server notes it in its journal."""


Said = Push | Change | Pull | Rest | Turn | Join | Mix | Arrived | Left | Parameters
"""Every message there is; nothing else is ever decoded."""
