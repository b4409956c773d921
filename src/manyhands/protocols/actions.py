"""Calls that a server receives, and the actions with which it responds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET

from manyhands.endpoint import (
    Custom,
    Parameters,
    Said,
)

if TYPE_CHECKING:
    import torch

    from manyhands.parameters import Holder


@dataclass(frozen=True)
class Call:
    """A message that a server received. Its payload, if any, stays in the receive buffer."""

    sender: str
    number: int
    """The sender's count of its calls to this server."""
    message: Said
    stands_for: str = ""
    """The member that the sender represents, if not itself (an island, for instance)."""
    room: bool = True
    """Whether the sender provided a buffer for parameters in the answer."""
    refused: str = ""
    """What its payload has that is no finite number: NaN or infinity. It is not applied, and its
    message says that it has no samples (`manyhands.protocols.parts.finite`)."""

    @property
    def worker(self) -> str:
        """The calling worker, without its incarnation, or the member that it represents."""
        return self.stands_for or self.sender.partition(".")[0]


def unused_in(message: Said) -> frozenset[int]:
    """The parameters of a shard, by their place, that have no gradient in an update."""
    unused = getattr(message, "unused", UNSET)
    return frozenset() if unused is UNSET else frozenset(unused)


@dataclass(frozen=True)
class Add:
    """Add the payload of a call, times `share`, to a sum of the shard.

    In place of a payload that is refused, the shard's own parameters are added: a replica that is
    not finite then moves those it would be averaged with nowhere.
    """

    call: Call
    share: float
    staleness: int | None = None
    """Versions between the read that the update was computed from and now."""
    pot: int = 0
    """Index of the sum, where several are accumulated at the same time."""


@dataclass(frozen=True)
class Step:
    """Take one optimizer step with the update of a call, or with the sum divided by `over`."""

    call: Call | None
    weight: float
    """Factor of the learning rate: samples / global batch."""
    staleness: int | None = None
    """As in `Add`, for the update of a call."""
    blend: float = 1.0
    """How far shared buffers (batch-norm statistics) move towards the update's."""
    over: float = 1.0
    compensation: float = 0.0
    """Strength of the correction for changes since the sender's last answer; 0 for none."""
    dealt: int = 0
    """Samples of the run before the batch of the update; the learning rate depends on it."""
    objective: int = 0
    """Number of the objective whose parameters are stepped, if the job has several; its sum has
    the same number (`Add.pot`)."""


@dataclass(frozen=True)
class Move:
    """Interpolate: parameters ← (1 − by)·parameters + by·(sum / over)."""

    by: float
    over: float
    pots: tuple[int, ...] = (0,)
    """Indices of the sums, if several; they are added in this order."""


@dataclass(frozen=True)
class Drop:
    """Discard a sum that will not be used."""

    pot: int


@dataclass(frozen=True)
class Descend:
    """Take an outer step with Nesterov momentum.

    Its gradient is the difference between the parameters and the sum divided by `over`; if the sum
    is one of changes, it is the sum divided by −`over`.
    """

    over: float
    rate: float
    momentum: float
    changes: bool = False
    """Whether changes were added up, and not replicas."""


@dataclass(frozen=True)
class Shift:
    """Add the payload of a call, or a sum if `call` is None, to the parameters."""

    call: Call | None
    staleness: int | None = None
    pot: int = 0
    """Index of the sum."""


@dataclass(frozen=True)
class Scale:
    """Multiply the shard's parameters by a factor."""

    by: float


@dataclass(frozen=True)
class Answer:
    """Answer a call, with the shard's current parameters unless `parameters` is False.

    A protocol of one's own may send something else: it overrides `payload` in a subclass.
    """

    call: Call
    message: Parameters | Custom
    parameters: bool = True
    remember: bool = False
    """Keep a copy of what is sent, for delay compensation or to send it again."""
    recall: bool = False
    """Send the copy that was kept for the sender instead of the current parameters."""
    gathered: bool = False
    """Send the shard's current sum instead of the parameters."""

    def __post_init__(self) -> None:
        if self.call.refused and isinstance(self.message, Parameters) and self.message.applied:
            object.__setattr__(
                self, "message", msgspec.structs.replace(self.message, applied=False)
            )

    def payload(self, shard: Holder) -> torch.Tensor | None:
        """The tensor that is sent, of any dtype; at most as long as the caller's buffer."""
        if not self.parameters:
            return None
        if self.recall:
            return shard.recall(self.call.sender)
        return shard.gathered() if self.gathered else shard.bytes


@dataclass(frozen=True)
class Forget:
    """Free the copy that was kept for a sender (`Answer.remember`)."""

    sender: str


@dataclass(frozen=True)
class ShardOperation(ABC):
    """Base of a protocol's own operations on a server's shard, for payloads of any kind.

    A subclass is a frozen dataclass. `apply` is a function of its fields, the shard and the payload
    alone: a restarted server executes it again from its journal, and must get the same result.
    """

    call: Call | None
    """The call whose payload it uses; None for none."""
    staleness: int | None = field(default=None, kw_only=True)
    """As in `Add`, if the payload is an update."""

    @abstractmethod
    def apply(self, shard: Holder, payload: torch.Tensor | None) -> None:
        """Change the shard.

        Args:
            shard: `shard.vector` is a view of its parameters, `shard.own_vector(name)` a further
                vector of that length; its other methods are those that built-in actions use.
            payload: the bytes that came with the call.
        """


Action = Add | Step | Move | Drop | Descend | Shift | Scale | Answer | Forget | ShardOperation

USES_PAYLOAD: Final = (Add, Step, Shift, ShardOperation)
"""The actions that may use the payload of a call, and may state its staleness."""

CHANGES_PARAMETERS: Final = (Step, Move, Descend, Shift, Scale, ShardOperation)
"""The actions after which a shard's parameters are others than before."""
