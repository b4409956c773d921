"""The seam between a protocol and whatever carries it: real sockets or a virtual network.

A protocol acts only through what stands here. It posts, it receives, it reads a clock and draws
from a random source that belong to its runtime; it never touches one of its own. Live, a coroutine
that awaits never suspends: it waits inside the transport. Virtually, it yields to the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from manyhands.sampling.batches import BatchSizes
from manyhands.wire.protocol_messages import (
    Arrived,
    Change,
    Errand,
    Join,
    Left,
    Mix,
    Parameters,
    Pull,
    Push,
    Rest,
    Said,
    Turn,
)

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable

    import torch


__all__ = [
    "Arrived",
    "Change",
    "Endpoint",
    "Errand",
    "Join",
    "LeasedBatch",
    "Left",
    "MembershipChanged",
    "Mix",
    "Parameters",
    "Pull",
    "Push",
    "Replica",
    "Rest",
    "Said",
    "Terms",
    "Turn",
]


class MembershipChanged(Exception):  # noqa: N818 - it is an event, not an error
    """Somebody is gone from whom an answer was expected."""


class Endpoint(Protocol):
    """A worker's way to the others."""

    name: str
    rng: random.Random

    def clock(self) -> float:
        """Seconds, real or virtual."""

    def post(
        self,
        to: str,
        message: Said,
        payload: torch.Tensor | None = None,
        into: torch.Tensor | None = None,
    ) -> None:
        """Send without ever blocking. The answer's payload will be written `into` that tensor.

        Neither tensor may be touched until the answer has been received.
        """

    def reaches(self, name: str) -> bool:
        """Whether a member is there, as far as is known."""

    async def receive(self, sender: str, timeout: float | None = None) -> Said:
        """The answer of `sender` to what was posted to it: the only wait there is.

        Raises:
            TimeoutError: nothing came in time.
            MembershipChanged: the sender is gone, and no answer will come.
        """


@dataclass(frozen=True)
class Terms:
    """What a protocol must know of the job."""

    global_batch: int | BatchSizes
    workers: int
    """How many take part at the start."""
    rate: float = 1.0
    """The learning rate that the optimizer begins with."""
    number: int = 0
    """Which server this is for."""

    def weigh(self, samples: int, dealt: int) -> float:
        """What an update counts for: its samples / the global batch that is in force for them.

        Args:
            samples: what it was made of.
            dealt: samples of the run before the global batch that those are from.
        """
        return samples / BatchSizes.of(self.global_batch).at(dealt)


class LeasedBatch(Protocol):
    """A worker's next samples, leased to it until it commits them."""

    samples: int
    """How many; none in a lockstep strategy if the global batch is too small for everybody."""
    total: int
    """How many the global batch has that they are a part of."""
    round: int
    """Which global batch that is, counted from the start."""
    dealt: int
    """Samples of the run before that."""


class Replica(Protocol):
    """A worker's copy of the model and its share of the data, as a protocol sees them."""

    rank: int
    servers: tuple[str, ...]
    terms: Terms
    returns: bool
    """Whether this worker was here before, and lost what it had."""
    rests: bool
    """Whether it has said that it rests, and not pulled since."""
    versions: list[int]
    """Of which version the parameters of each server are that were received last."""

    def batches(self) -> AsyncIterator[LeasedBatch | None]:
        """Batches until the run ends; evaluations happen in between.

        Under a lockstep strategy None comes when there are no samples at present though others
        have some, so that they need not wait for this worker.
        """

    async def gradient(
        self, batch: LeasedBatch, ready: Callable[[int], object] | None = None
    ) -> None:
        """Compute the update of a batch; `ready(s)` as soon as server s's part is complete.

        Where workers clip updates, no part is complete before all are.
        """

    def apply(self, batch: LeasedBatch, counts: int | None = None) -> None:
        """Take a step of this worker's own optimizer with the update that was computed.

        The step counts for so many of the global batch's samples. By default for all that
        `batch` is a part of: the other parts are stepped with elsewhere, and whoever brings them
        together takes the mean. Where steps add up, each counts for its own samples. The learning
        rate is that of the batch's place in the run.
        """

    def update(self, server: int) -> torch.Tensor:
        """The update for server s, as bytes."""

    def parameters(self, server: int) -> torch.Tensor:
        """The parameters of server s, as bytes: what is received here is what is computed on."""

    def beside(self, server: int) -> torch.Tensor:
        """Room for the parameters of server s as somebody else has them."""

    def draw(self, by: float) -> None:
        """Move the parameters towards those that lie beside them by a part of the way."""

    def scale(self, by: float) -> None:
        """Multiply the parameters."""

    def trade(self, by: float) -> None:
        """The same, and have the parameters as they were lie beside them now."""

    def lay_aside(self) -> None:
        """Have a copy of the parameters lie beside them."""

    def moved(self, server: int) -> torch.Tensor:
        """How far the parameters of server s are from those beside them, whose place it takes."""

    def compare(self, by: float) -> None:
        """Make the update: `by` times how far the parameters are from those beside them."""

    def adopt(self) -> None:
        """Take over the buffers (batch-norm statistics) that came with the parameters."""

    def commit(self, *batches: LeasedBatch) -> None:
        """What was made of the batches is part of the shared state now."""

    def forgo(self, batch: LeasedBatch) -> None:
        """What was made of the batch is not wanted: its samples are lost."""
