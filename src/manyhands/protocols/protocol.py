"""The contract of a protocol: a worker's coroutine and a server's pure decisions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias

from manyhands.endpoint import Parameters, Terms
from manyhands.notation import Value
from manyhands.protocols.actions import Answer
from manyhands.runtime_needs import ProtocolOptions, RuntimeNeeds, check_one_host

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Self

    from manyhands.costs import StepPayload
    from manyhands.endpoint import Endpoint, Replica
    from manyhands.job import Job
    from manyhands.protocols.actions import Action, Call
    from manyhands.protocols.compression.coding import Coding


WorkerGroup: TypeAlias = tuple[range, range]
"""The ranks of workers, and the numbers of the servers that belong to them."""

EVALUATORS: Final = 8
"""Limit on evaluating workers, where an evaluation needs the replicas of all workers."""


@dataclass(frozen=True)
class ServerState:
    """State of a server. Each decision depends on it and returns the next one."""

    terms: Terms
    version: int = 0


@dataclass(frozen=True, repr=False)
class StrategyProtocol(Value, ProtocolOptions, ABC):
    """Base class of strategies that exchange messages at step boundaries.

    `worker` reads like the algorithm in its paper. `on_message` is a pure function from a state
    and a call to the next state and a list of actions, which the runtime carries out. Neither
    uses a socket, a clock, a thread or a random generator of its own, so both run unchanged on a
    virtual cluster.
    """

    gradient_norms: ClassVar[bool] = True
    """Workers compute whole gradients, whose norms can be recorded."""
    support: ClassVar[Literal["stable", "beta", "experimental"]]
    local_optimizer: ClassVar[bool] = False
    """These flags are passed to the runtime by `needs`; `RuntimeNeeds` documents each of them."""
    own_parameters: ClassVar[bool] = False
    peer_servers: ClassVar[bool] = False
    peers_return: ClassVar[bool] = False
    ensemble: ClassVar[bool] = False
    shared_memory: ClassVar[bool] = False
    clips: ClassVar[Literal["workers", "servers"]] = "workers"
    alternates: ClassVar[bool] = False
    if TYPE_CHECKING:  # each protocol declares it at its own place among its parameters
        servers: int
        """Number of server processes; each holds a shard of the parameters."""

    @property
    def lockstep(self) -> bool:
        """Whether workers wait for each other; each then gets a (possibly empty) part per batch."""
        return False

    def by_rank(self, workers: int) -> bool:
        """Whether the parts of a global batch are assigned by rank, and not on demand.

        If all workers wait for each other after every step, all parts of a global batch are
        computed in one round. If fast workers may run ahead, they should receive more samples.
        """
        del workers
        return False

    def __post_init__(self) -> None:
        chosen = any(field.name == "servers" for field in fields(self))
        if chosen and not 1 <= self.servers <= 1024:
            raise ValueError(f"servers must be between 1 and 1024, got {self.servers}")
        self.coding_of(0, 2)  # a codec that does not suit raises ValueError

    def needs(self, workers: int) -> RuntimeNeeds:
        """The features that this strategy needs from its runtime.

        If every worker has its own replica, an evaluating worker has to receive all of them. So
        only `EVALUATORS` workers evaluate; otherwise traffic would grow with workers squared.
        """
        return RuntimeNeeds(
            servers=self.count_servers(workers),
            peer_servers=self.peer_servers,
            peers_return=self.peers_return,
            shards=self.shards,
            shared_memory=self.shared_memory,
            local_optimizer=self.local_optimizer,
            own_parameters=self.own_parameters,
            ensemble=self.ensemble,
            lockstep=self.lockstep,
            by_rank=self.by_rank(workers),
            evaluators=EVALUATORS if self.peer_servers else None,
            clips=self.clips,
            alternates=self.alternates,
        )

    @property
    def shards(self) -> int:
        """Number of shards that the parameters are divided into."""
        return 1 if self.peer_servers else max(1, self.servers)

    def count_servers(self, workers: int) -> int:
        """Number of servers for a number of workers."""
        return workers if self.peer_servers else self.servers

    def payload_limit(self, shard_bytes: int) -> int:
        """The most bytes that a worker sends to a server in one call; servers reserve memory."""
        return shard_bytes

    def shared_by(self, workers: int) -> range:
        """The indices of the servers that hold the shared parameters, one shard each, in order."""
        return range(self.count_servers(workers))

    def step_payload(self, workers: int, size: int) -> StepPayload | None:
        """Payload bytes of a step by the protocol's formula; None if it states none.

        A step is one update of one worker: in lockstep, its part of a global batch. Exchanges that
        happen once in several steps are divided by their number.

        Args:
            workers: number of workers.
            size: m, the bytes of the parameters and shared buffers, over all shards.
        """
        del workers, size
        return None

    def coding_of(self, server: int, workers: int) -> Coding | None:
        """The codecs of what is sent to and from a server; None if nothing is encoded."""
        del server, workers
        return None

    def mass(self, state: ServerState) -> float:
        """Weight of a server's replica in the mean, where every server holds a whole replica."""
        del state
        return 1.0

    def groups(self, workers: int) -> tuple[WorkerGroup, ...]:
        """Groups of workers with servers of their own, which belong near them; empty if none."""
        del workers
        return ()

    def on_islands(self, sizes: tuple[int, ...]) -> Self:
        """The strategy for a cluster whose sites, or else hosts, have so many workers each.

        Only a strategy with islands depends on it; without any sizes none does.
        """
        del sizes
        return self

    def check(self, workers: int) -> None:
        """Raise ValueError, naming the fix, if the strategy cannot run with this many workers."""
        if workers < 1:
            raise ValueError(f"a run needs at least 1 worker, got {workers}")

    def check_job(self, job: Job, workers: int) -> None:  # noqa: ARG002 - the contract
        """Raise ValueError, naming the fix, if it cannot train this job; no process has started."""
        self.check_options(job)
        if job.clip is not None and self.clips == "servers" and self.shards > 1:
            raise ValueError(
                f"Job(clip=...) needs the norm of the whole mean gradient, and {self} divides it "
                f"among {self.shards} servers: use servers=1, or allreduce()"
            )

    def check_places(self, hosts: Collection[str], devices: Collection[str]) -> None:
        """Raise ValueError, naming the fix, if the strategy cannot run on these hosts and devices.

        Args:
            hosts: names of all hosts that run a worker or a server.
            devices: devices of the workers, as torch names them.
        """
        if self.shared_memory:
            check_one_host(self, hosts, devices, writes=self.local_optimizer)

    def begin(self, terms: Terms) -> ServerState:
        """The initial state of a server."""
        return ServerState(terms)

    @abstractmethod
    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """Run one worker, from its first pull to the end of the run."""

    @abstractmethod
    async def refresh(self, replica: Replica, endpoint: Endpoint) -> list[int]:
        """Load the shared parameters into the replica; return the version of each shard.

        Called by `worker`, and by the runtime before an evaluation.
        """

    async def stand_by(self, replica: Replica, endpoint: Endpoint) -> None:
        """Called in place of `refresh` before an evaluation in which this worker has no part."""
        del endpoint
        replica.rests = False

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Handle a call: the server's next state, and the actions to carry out.

        The default, for protocols without servers, does nothing.
        """
        del call
        return state, []

    def early(self, state: ServerState, call: Call) -> int:
        """How many calls should be handled before this one; the runtime may hold it until then.

        If a round waits for all workers, holding calls costs no time, and sums are computed in a
        fixed order. When all workers have called, at least one held call must return 0.
        """
        del state, call
        return 0

    def on_repeat(self, state: ServerState, call: Call) -> Answer:
        """The answer to a call that was answered before: the current parameters.

        Parameters are sent only if the call has a buffer for them (`room`); the runtime raises
        an error otherwise.
        """
        return Answer(
            call, Parameters(state.version), parameters=call.room and not self.shared_memory
        )

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """Handle the loss of a worker: the server's next state, and the actions to carry out."""
        del worker
        return state, []

    def on_return(self, state: ServerState, worker: str) -> ServerState:
        """Handle the return of a worker, with peer servers: the server's next state.

        It has its replica by then, and other workers call it again from now on.
        """
        del worker
        return state
