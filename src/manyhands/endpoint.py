"""Interfaces between a protocol and its runtime: real sockets, or a virtual network.

A protocol uses only these interfaces. It posts and receives messages, and uses the clock and the
random generator of its runtime, never its own. In a live run `await` blocks inside the transport
and the coroutine never suspends; in a virtual run it yields to the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from manyhands.sampling.batches import BatchSizes
from manyhands.wire.protocol_messages import (
    Arrived,
    Change,
    Custom,
    Errand,
    Join,
    Left,
    Mix,
    Parameters,
    Pull,
    Push,
    Rest,
    Said,
    StoreShard,
    Turn,
)

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable, Sequence

    import torch

    from manyhands.collectives import ExchangeTable, StepProgram


__all__ = [
    "Arrived",
    "Begun",
    "Change",
    "CollectiveEndpoint",
    "Custom",
    "Endpoint",
    "Errand",
    "Join",
    "LeasedBatch",
    "Left",
    "LockstepReplica",
    "MembershipChanged",
    "Mix",
    "Parameters",
    "Pull",
    "Push",
    "Replica",
    "Rest",
    "Said",
    "StoreShard",
    "Terms",
    "Turn",
]


class MembershipChanged(Exception):  # noqa: N818 - it is an event, not an error
    """The member from which an answer was expected was lost."""


class Endpoint(Protocol):
    """A worker's connection to servers and other workers."""

    name: str
    rng: random.Random

    def clock(self) -> float:
        """Current time in seconds, real or virtual."""

    def post(
        self,
        to: str,
        message: Said,
        payload: torch.Tensor | None = None,
        into: torch.Tensor | None = None,
    ) -> None:
        """Send a message without blocking. The answer's payload will be written to `into`.

        Both are contiguous tensors of any dtype and size, within the server's limit
        (`StrategyProtocol.payload_limit`). Neither may be used until the answer has been received.
        An answer may be shorter than `into`; it is written to its start.
        """

    def reaches(self, name: str) -> bool:
        """Whether a member is alive, as far as is known."""

    async def receive(self, sender: str, timeout: float | None = None) -> Said:
        """Wait for the answer of `sender` to the oldest message posted to it.

        Raises:
            TimeoutError: there was no answer in time.
            MembershipChanged: the sender was lost, and no answer will come.
        """


class Begun(Protocol):
    """A collective operation that a worker has begun."""

    size: int
    """Bytes of its vector."""


class CollectiveEndpoint(Endpoint, Protocol):
    """The endpoint of a worker that steps together with all others: collectives beside messages.

    All workers of a collective begin it, and the other ones with the same workers, in the same
    order. A worker takes part in one at a time, in the order in which it began them.
    """

    rank: int
    hosts: Sequence[str]
    """The host of each worker."""

    def begin(
        self,
        exchange: ExchangeTable,
        size: int,
        values: torch.Tensor | None = None,
        ranks: Sequence[int] | None = None,
        width: int = 1,
    ) -> Begun:
        """Begin a collective without blocking.

        Args:
            exchange: its messages.
            size: bytes of the vector.
            values: the vector, changed in place until the collective has ended; None if only its
                time counts.
            ranks: the workers that take part; by default all.
            width: bytes of an element, within which the vector is not divided.
        """

    async def end(self, *begun: Begun) -> None:
        """Wait until these collectives have ended."""

    def give(self, to: int, size: int, tag: object) -> None:
        """Send a worker a message of so many bytes, without waiting."""

    async def take(self, sender: int, tag: object) -> None:
        """Wait for a worker's message of that tag."""


@dataclass(frozen=True)
class Terms:
    """The facts about a job that a protocol needs."""

    global_batch: int | BatchSizes
    workers: int
    """Number of workers at the start."""
    rate: float = 1.0
    """The initial learning rate of the optimizer."""
    number: int = 0
    """Index of the server that these terms are for."""
    objectives: int = 1
    """Number of objectives of the job; every global batch gives a step for each of them."""

    def weigh(self, samples: int, dealt: int) -> float:
        """The weight of an update: its samples / the size of their global batch.

        Args:
            samples: samples of the update.
            dealt: samples of the run before their global batch.
        """
        return samples / BatchSizes.of(self.global_batch).at(dealt)


class LeasedBatch(Protocol):
    """A worker's next samples, leased to it until it commits them."""

    samples: int
    """Number of samples; 0 in a lockstep strategy if a global batch has fewer than workers."""
    total: int
    """Number of samples of their global batch."""
    round: int
    """Index of their global batch, from the start of the run."""
    dealt: int
    """Samples of the run before their global batch."""
    mass: float
    """The weight of the update in a mean if the loss has one, such as a number of tokens; 0 if it
    is the number of samples. Known when `gradient` calls `ready` for the first time."""
    objective: int
    """Number of the objective to compute the update of; a batch of a job with several objectives is
    returned once for each of them, in order."""


class Replica(Protocol):
    """A worker's copy of the model and its share of the data, as used by a protocol."""

    rank: int
    servers: tuple[str, ...]
    terms: Terms
    returns: bool
    """Whether this worker was restarted, and lost its state."""
    rests: bool
    """Whether it has sent `Rest`, and not pulled since."""
    pauses: bool
    """If there is no batch at present: whether all workers pause after the same global batch."""
    versions: list[int]
    """By server, the version of the parameters that were received last."""

    def batches(self) -> AsyncIterator[LeasedBatch | None]:
        """Batches until the run ends; evaluations happen in between.

        A lockstep strategy gets None if there are no samples for this worker at present, so that
        other workers need not wait for it.
        """

    def unused(self, server: int) -> tuple[int, ...]:
        """The parameters of a server's shard, by their place, that the last update has not.

        They had no gradient, and are 0 in the update. Valid when `gradient` calls `ready(server)`.
        """

    async def gradient(
        self, batch: LeasedBatch, ready: Callable[[int], object] | None = None
    ) -> None:
        """Compute the update of a batch; call `ready(s)` when the part of server s is complete.

        If workers clip updates, no part is complete before all are.
        """

    def apply(self, batch: LeasedBatch, counts: int | None = None) -> None:
        """Take a step of the local optimizer with the computed update.

        The step has the weight `counts` / global batch. By default `counts` is the whole global
        batch: other workers step with the other parts, and replicas are averaged. If steps are
        added instead, `counts` is the samples of `batch`. The learning rate is that of the batch's
        position in the run.

        No step is taken with an update that has NaN or infinity: the batch then has no samples
        from here on, and `commit` discards it.
        """

    def update(self, server: int) -> torch.Tensor:
        """The bytes of the update for a server."""

    def parameters(self, server: int) -> torch.Tensor:
        """The bytes of a server's parameters, which the model computes on."""

    def update_vector(self, server: int) -> torch.Tensor:
        """The update for a server as one vector of numbers, without buffers; a view."""

    def parameter_vector(self, server: int) -> torch.Tensor:
        """The parameters of a server as one vector of numbers, without buffers; a view."""

    def beside(self, server: int) -> torch.Tensor:
        """A second buffer for a server's parameters: the centre's, or another worker's."""

    def draw(self, by: float, server: int | None = None) -> None:
        """Move the parameters towards the second buffer: x ← x + by·(beside − x).

        With a `server`, only its parameters.
        """

    def scale(self, by: float) -> None:
        """Multiply the parameters."""

    def trade(self, by: float) -> None:
        """As `draw`, and the second buffer gets the old parameters."""

    def lay_aside(self, server: int | None = None) -> None:
        """Copy the parameters, or those of one server, to the second buffer."""

    def moved(self, server: int) -> torch.Tensor:
        """The difference of a server's parameters to the second buffer, in its memory."""

    def compare(self, by: float) -> None:
        """Set the update to `by` times the difference of the parameters to the second buffer."""

    def adopt(self) -> None:
        """Adopt the buffers (batch-norm statistics) that were received with the parameters."""

    def commit(self, *batches: LeasedBatch) -> None:
        """Commit batches: their updates are part of the shared parameters."""

    def forgo(self, *batches: LeasedBatch) -> None:
        """Discard batches: their updates were not applied, and their samples are lost."""


class LockstepReplica(Replica, Protocol):
    """The replica of a worker that steps together with all others, on a virtual clock.

    The time of a batch is known as a whole. It passes in parts, so that collectives can begin while
    the rest of the batch is computed.
    """

    @property
    def program(self) -> StepProgram:
        """What workers do in a step, where one replica computes the numbers."""

    @property
    def width(self) -> int:
        """Bytes of a parameter's element."""

    @property
    def buckets(self) -> Sequence[tuple[int, float]]:
        """By bucket, its bytes and its share of a batch's time, in the order of completion."""

    async def compute(self, batch: LeasedBatch, share: float) -> None:
        """Compute for a share of the time that the batch takes."""

    async def code(self, seconds: float) -> None:
        """Encode or decode for so long."""

    def differentiate(self, batch: LeasedBatch) -> None:
        """Compute the loss and the gradient of a batch, which takes no time by itself."""

    def weighted(self, bucket: int) -> torch.Tensor | None:
        """A vector to be summed over all workers: a part of the gradient times its weight.

        The last bucket has the weight as one more element. None if there are no numbers.
        """

    def step(self, batch: LeasedBatch) -> None:
        """Take a step with the mean that the summed buckets give."""
