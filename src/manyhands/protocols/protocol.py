"""The contract of a protocol: a worker's coroutine and a server's pure decisions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Literal

# What a state is made of, so that it can be written down and read again.
from manyhands.endpoint import Parameters, Said, Terms
from manyhands.notation import Value

if TYPE_CHECKING:
    from collections.abc import Collection

    from manyhands.endpoint import Endpoint, Replica


@dataclass(frozen=True)
class Call:
    """A message as it reached a server. An update that came with it waits where it arrived."""

    sender: str
    number: int
    """The sender's count of its calls to this server."""
    message: Said

    @property
    def worker(self) -> str:
        """Who sent it, in whichever of its lives."""
        return self.sender.partition(".")[0]


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


@dataclass(frozen=True)
class Move:
    """Move the shard towards the sum divided by `over`, by a part of the way."""

    by: float
    over: float
    pot: int = 0


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
    """Add what came with a call to the shard."""

    call: Call
    staleness: int | None = None


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


@dataclass(frozen=True)
class Forget:
    """What was kept for a sender is no longer needed."""

    sender: str


Action = Add | Step | Move | Drop | Descend | Shift | Answer | Forget


@dataclass(frozen=True)
class ServerState:
    """What a server's decisions depend on; each decision gives the next state."""

    terms: Terms
    version: int = 0


@dataclass(frozen=True, repr=False)
class StrategyProtocol(Value, ABC):
    """A strategy that acts at step boundaries, by messages.

    `worker` reads like the algorithm in its paper. `on_message` is pure: it sees a state and a
    call and says what to do; a runtime does it. Neither touches a socket, a clock, a thread or a
    random source of its own, so both run unchanged on a virtual cluster.
    """

    support: ClassVar[Literal["stable", "beta", "experimental"]]
    local: ClassVar[bool] = False
    """Whether workers step with optimizers of their own."""
    keeps: ClassVar[bool] = False
    """Whether a worker's parameters are its own, and not the shared ones."""
    peers: ClassVar[bool] = False
    """Whether every worker has a server of its own, with a whole replica in it."""
    committee: ClassVar[bool] = False
    """Whether the replicas stay apart, and the mean of their outputs is what they say."""
    shares: ClassVar[bool] = False
    """Whether the parameters lie in memory that everybody on one host uses where it is: then
    servers write there what workers read, and without servers the workers write themselves."""
    if TYPE_CHECKING:  # every protocol declares it where it wants it among its own parameters
        servers: int
        """How many processes hold the parameters, a part each."""

    @property
    def lockstep(self) -> bool:
        """Whether workers are waited for, and so get a part of every global batch, be it empty."""
        return False

    def by_rank(self, workers: int) -> bool:
        """Whether a worker gets its own part of every global batch, and not the next one.

        Where all wait for each other after every step, all parts of a global batch are then
        computed in one round; where some run ahead, they would be given less than they can do.
        """
        del workers
        return False

    def __post_init__(self) -> None:
        chosen = any(field.name == "servers" for field in fields(self))
        if chosen and not 1 <= self.servers <= 1024:
            raise ValueError(f"servers must be between 1 and 1024, not {self.servers}")

    @property
    def shards(self) -> int:
        """Into how many parts the parameters are cut."""
        return 1 if self.peers else max(1, self.servers)

    def count_servers(self, workers: int) -> int:
        """How many servers there are with so many workers."""
        return workers if self.peers else self.servers

    def check(self, workers: int) -> None:
        """Raise ValueError, naming the fix, if so many workers cannot be served."""
        if workers < 1:
            raise ValueError(f"a run needs at least 1 worker, not {workers}")

    def check_places(self, hosts: Collection[str], devices: Collection[str]) -> None:
        """Raise ValueError, naming the fix, if members on these hosts and devices cannot do it.

        Args:
            hosts: the names of all on which somebody runs.
            devices: what the workers compute on, as torch names it.
        """
        if not self.shares:
            return
        if len(set(hosts)) > 1:
            raise ValueError(
                f"{self} keeps the parameters in memory that only one host's processes share, and "
                f"this run has {len(set(hosts))} hosts: run it on one, or use a strategy that "
                "sends them, as synchronous() or asynchronous()"
            )
        others = sorted({device for device in devices if device != "cpu"})
        if self.local and others:
            raise ValueError(
                f"{self} has all workers write the parameters in the host's memory, which "
                f"{', '.join(others)} cannot: hide the GPUs (CUDA_VISIBLE_DEVICES=) to compute on "
                "the cores, or use asynchronous()"
            )

    def begin(self, terms: Terms) -> ServerState:
        """The state of a server that has heard nothing yet."""
        return ServerState(terms)

    @abstractmethod
    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """What a worker does, from its first pull to the end of the run."""

    @abstractmethod
    async def refresh(self, replica: Replica, endpoint: Endpoint) -> list[int]:
        """Bring the replica to the shared state; the version of each part of it.

        Called by a worker for itself, and by the runtime before an evaluation.
        """

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """What a server does about a call, and its state afterwards. Without servers: nothing."""
        del call
        return state, []

    def on_repeat(self, state: ServerState, call: Call) -> Answer:
        """How a server answers a call that it has answered before: with what is there now."""
        return Answer(call, Parameters(state.version), parameters=not self.shares)

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """What a server does when a worker is gone, and its state afterwards."""
        del worker
        return state, []
