"""What a server hears, and what it may do about it."""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.endpoint import Parameters, Said  # noqa: TC001 - states are written down and read


@dataclass(frozen=True)
class Call:
    """A message as it reached a server. An update that came with it waits where it arrived."""

    sender: str
    number: int
    """The sender's count of its calls to this server."""
    message: Said
    stands_for: str = ""
    """For whom the sender speaks, if not for itself."""
    room: bool = True
    """Whether the sender has room for parameters in the answer."""

    @property
    def worker(self) -> str:
        """Who says it: the sender, in whichever of its lives, or for whom it stands."""
        return self.stands_for or self.sender.partition(".")[0]


@dataclass(frozen=True)
class Add:
    """Add what came with a call, times `share`, to the shard's sum."""

    call: Call
    share: float
    staleness: int | None = None
    """Versions between the read that the update was computed from and now."""
    pot: int = 0
    """Which sum, where several are gathered at once."""


@dataclass(frozen=True)
class Step:
    """Take one optimizer step with the update of a call, or with the sum divided by `over`."""

    call: Call | None
    weight: float
    """What the step counts for, by the learning rate: samples / global batch."""
    staleness: int | None = None
    """As in `Add`, for the update of a call."""
    blend: float = 1.0
    """How far shared buffers (batch-norm statistics) move towards the update's."""
    over: float = 1.0
    compensation: float = 0.0
    """How strongly the update is corrected for what changed since its sender's last answer."""
    dealt: int = 0
    """Samples of the run before the batch that the update is from: they decide the rate."""


@dataclass(frozen=True)
class Move:
    """Move the shard towards the sum divided by `over`, by a part of the way."""

    by: float
    over: float
    pots: tuple[int, ...] = (0,)
    """Which sums, where what came was gathered in several; they are added up in this order."""


@dataclass(frozen=True)
class Drop:
    """Forget a sum: nothing will be done with it."""

    pot: int


@dataclass(frozen=True)
class Descend:
    """Step away from where the shard is, towards the sum divided by `over`, with momentum.

    The way to there is the gradient of an outer step: Nesterov's, with a rate and a momentum.
    """

    over: float
    rate: float
    momentum: float


@dataclass(frozen=True)
class Shift:
    """Add what came with a call, or a sum, to the shard."""

    call: Call | None
    staleness: int | None = None
    pot: int = 0
    """Which sum, if it is one."""


@dataclass(frozen=True)
class Scale:
    """Multiply the shard's parameters."""

    by: float


@dataclass(frozen=True)
class Answer:
    """Answer a call, with the shard's parameters as they are now unless none are wanted."""

    call: Call
    message: Parameters
    parameters: bool = True
    remember: bool = False
    """Keep what is sent, to correct the sender's next update by, or to send it again."""
    recall: bool = False
    """Send what was kept for the sender, and not what is there now."""
    gathered: bool = False
    """Send the shard's sum as it is now, and not the parameters."""


@dataclass(frozen=True)
class Forget:
    """What was kept for a sender is no longer needed."""

    sender: str


Action = Add | Step | Move | Drop | Descend | Shift | Scale | Answer | Forget
