"""The contract of a protocol: a worker's coroutine and a server's pure decisions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.notation import Value

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, Parameters, Replica, Said


@dataclass(frozen=True)
class Terms:
    """What a server must know of the job."""

    global_batch: int
    workers: int


@dataclass(frozen=True)
class Call:
    """A message as it reached a server. An update that came with it waits where it arrived."""

    sender: str
    number: int
    """The sender's count of its calls to this server."""
    message: Said


@dataclass(frozen=True)
class Step:
    """Take one optimizer step with the update of a call."""

    call: Call
    weight: float
    """What the step counts for, by the learning rate: samples / global batch."""
    staleness: int
    """Versions between the read that the update was computed from and now."""
    blend: float = 1.0
    """How far shared buffers (batch-norm statistics) move towards the sender's."""


@dataclass(frozen=True)
class Answer:
    """Answer a call with the shard's parameters as they are now."""

    call: Call
    message: Parameters


Action = Step | Answer


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
    servers: int
    """How many processes hold the parameters, a part each."""

    def check(self, workers: int) -> None:
        """Raise ValueError, naming the fix, if so many workers cannot be served."""
        if workers < 1:
            raise ValueError(f"a run needs at least 1 worker, not {workers}")

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

    @abstractmethod
    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """What a server does about a call, and its state afterwards."""
