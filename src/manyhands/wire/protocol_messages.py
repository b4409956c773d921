"""Messages of protocols between workers and servers. Tensors are sent in separate frames."""

from typing import Final, Literal, TypeAlias

import msgspec

from manyhands.wire.message import Message

Errand: TypeAlias = Literal["", "meet", "join", "rest", "done"]
"""Purpose of a message between inner and outer servers: to synchronise with the outer servers, to
join them again, to announce a rest, or to report that this is done."""


class Push(Message, frozen=True):
    """An update or a replica, computed from parameters of `version` on `samples` samples.

    `total` is the number of samples in the global batch.
    """

    version: int
    samples: int
    dealt: int = 0
    """For an update: samples of the run before its global batch, which decide its weight."""
    total: int = 0
    mass: float = 0.0
    """The weight of a replica in push-sum; of an update or a replica in a mean, if it is not its
    samples but, for instance, its tokens."""
    number: int = 0
    """For a sum over several workers: its number, so that it counts once."""
    rests: bool = False
    """Whether the sender has no samples after this, as if it had sent `Rest` too."""
    objective: int = 0
    """For an update of a job with several objectives: the number of the one it is computed for."""
    unused: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """For an update: the parameters of the shard that have no gradient, by their place; not sent if
    all have one. In the payload they are 0."""

    @property
    def weight(self) -> float:
        """The weight in a mean."""
        return self.mass or float(self.samples)


class Pull(Message, frozen=True):
    """A request for parameters. The sender takes part from then on, unless `looks` is set.

    With a `share`, that share of the parameters and of their mass is given to the sender.
    """

    looks: bool = False
    number: int = 0
    """For sums over several workers: sums with smaller numbers that arrive later are void."""
    share: float = 0.0


class Change(Message, frozen=True):
    """A difference to be added to the parameters, computed from parameters of `version`.

    It may have an `errand`. With a `share`, that share of the result is sent back.
    """

    version: int
    errand: Errand = ""
    share: float = 0.0
    number: int = 0
    """The number of the `Pull` that returned the parameters."""


class Rest(Message, frozen=True):
    """The sender has no samples at present: other workers must not wait for it."""

    pauses: bool = False
    """Whether all workers pause here: the next round waits for the sender, although it may be the
    last one to come back."""


class Turn(Message, frozen=True):
    """A request for the next turn, where workers take turns."""


class Join(Message, frozen=True):
    """A worker has entered a round and sent its replica to the neighbours of these ranks."""

    round: int
    neighbours: tuple[int, ...]


class Mix(Message, frozen=True):
    """A request to mix a worker's replica of a round with those of its neighbours."""

    round: int
    neighbours: tuple[int, ...]


class Arrived(Message, frozen=True):
    """The last answer has arrived: the copy kept for resending it can be freed."""


class Parameters(Message, frozen=True):
    """Parameters after `version` updates, and whether the sender's update is included.

    With an `errand` they are to be forwarded, with the number of `samples` they are made of. They
    may have a `mass`.
    """

    version: int
    applied: bool = True
    errand: Errand = ""
    samples: int = 0
    mass: float = 1.0
    dealt: int = 0
    """For a sum of updates that is to be forwarded: as in `Push`."""
    number: int = 0
    """For a sum of updates that is to be forwarded: as in `Push`. For parameters that are: of how
    many rounds, if no more follow for the time being."""
    unused: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """For a sum of updates that is to be forwarded: as in `Push`."""


Item: TypeAlias = bool | int | float | str | None
"""A value in a message of a protocol of one's own."""

CUSTOM_LIMIT: Final = 320
"""Bytes of the kind and the values of a `Custom` message: a journal has room for them."""


class Custom(Message, frozen=True):
    """A message of a protocol of one's own: its kind, and values by name.

    Tensors are sent as a payload, not as values.

    Raises:
        ValueError: the encoded values have more than `CUSTOM_LIMIT` bytes.
    """

    kind: str
    values: dict[str, Item | tuple[Item, ...]] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        size = len(self.kind.encode()) + len(_encode(self.values))
        if size > CUSTOM_LIMIT:
            raise ValueError(
                f"a message '{self.kind[:40]}' has {size} bytes of values, the limit is "
                f"{CUSTOM_LIMIT}: send large values as a payload"
            )


_encode = msgspec.msgpack.Encoder().encode


class StoreShard(Message, frozen=True):
    """A request to a server to store its part of a checkpoint, between two rounds."""

    samples: int
    """Samples of the run so far."""
    attempt: str
    """Names the unfinished folder, the same for all that store."""


class Left(Message, frozen=True):
    """A worker is lost. This is not sent: a server writes it to its journal."""


Said = (
    Push
    | Change
    | Pull
    | Rest
    | Turn
    | Join
    | Mix
    | Arrived
    | StoreShard
    | Left
    | Parameters
    | Custom
)
"""All messages of protocols; nothing else is decoded."""
