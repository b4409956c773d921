"""The seam between a protocol and whatever carries it: real sockets or a virtual network.

A protocol acts only through what stands here. It posts, it receives, it reads a clock and draws
from a random source that belong to its runtime; it never touches one of its own. Live, a coroutine
that awaits never suspends: it waits inside the transport. Virtually, it yields to the simulator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from manyhands.wire.said import Parameters, Pull, Push, Said

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable

    import torch


__all__ = [
    "Endpoint",
    "LeasedBatch",
    "MembershipChanged",
    "Parameters",
    "Pull",
    "Push",
    "Replica",
    "Said",
]


class MembershipChanged(Exception):  # noqa: N818 - it is an event, not an error
    """The members are no longer those that the receiver had in mind."""


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

    async def receive(self, sender: str, timeout: float | None = None) -> Said:
        """The answer of `sender` to what was posted to it: the only wait there is.

        Raises:
            TimeoutError: nothing came in time.
            MembershipChanged: the members changed, for protocols that follow them.
        """


class LeasedBatch(Protocol):
    """A worker's next samples, leased to it until it commits them."""

    samples: int


class Replica(Protocol):
    """A worker's copy of the model and its share of the data, as a protocol sees them."""

    servers: tuple[str, ...]

    def batches(self) -> AsyncIterator[LeasedBatch]:
        """Batches until the run ends; evaluations happen in between."""

    async def gradient(self, batch: LeasedBatch, ready: Callable[[int], object]) -> None:
        """Compute the update of a batch; `ready(s)` as soon as server s's part is complete."""

    def update(self, server: int) -> torch.Tensor:
        """The update for server s, as bytes."""

    def parameters(self, server: int) -> torch.Tensor:
        """The parameters of server s, as bytes: what is received here is what is computed on."""

    def commit(self, batch: LeasedBatch) -> None:
        """The batch's update is part of the shared state now."""
