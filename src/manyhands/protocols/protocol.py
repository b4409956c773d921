"""The contract of a protocol: a worker's coroutine and a server's pure decisions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias

from manyhands.endpoint import Parameters, Terms
from manyhands.notation import Value
from manyhands.protocols.actions import Answer
from manyhands.runtime_needs import RuntimeNeeds

if TYPE_CHECKING:
    from collections.abc import Collection

    from manyhands.endpoint import Endpoint, Replica
    from manyhands.job import Job
    from manyhands.protocols.actions import Action, Call


Site: TypeAlias = tuple[range, range]
"""The ranks of workers, and the numbers of servers, that belong on one host."""


EVALUATORS: Final = 8
"""Workers that evaluate, where each of them needs the replicas of all."""


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
    local_optimizer: ClassVar[bool] = False
    """What `needs` hands to the runtime; `RuntimeNeeds` explains each of these."""
    own_parameters: ClassVar[bool] = False
    peer_servers: ClassVar[bool] = False
    ensemble: ClassVar[bool] = False
    shared_memory: ClassVar[bool] = False
    clips: ClassVar[Literal["workers", "servers"]] = "workers"
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

    def needs(self, workers: int) -> RuntimeNeeds:
        """What the runtime has to provide.

        Where every worker has a replica of its own, one that evaluates needs all of them. So only
        `EVALUATORS` do, or the square of the number of workers would be sent.
        """
        return RuntimeNeeds(
            servers=self.count_servers(workers),
            peer_servers=self.peer_servers,
            shards=self.shards,
            shared_memory=self.shared_memory,
            local_optimizer=self.local_optimizer,
            own_parameters=self.own_parameters,
            ensemble=self.ensemble,
            lockstep=self.lockstep,
            by_rank=self.by_rank(workers),
            evaluators=EVALUATORS if self.peer_servers else None,
            clips=self.clips,
        )

    @property
    def shards(self) -> int:
        """Into how many parts the parameters are cut."""
        return 1 if self.peer_servers else max(1, self.servers)

    def count_servers(self, workers: int) -> int:
        """How many servers there are with so many workers."""
        return workers if self.peer_servers else self.servers

    def shared_by(self, workers: int) -> range:
        """The numbers of those servers that hold what is shared by all, a part each in order."""
        return range(self.count_servers(workers))

    def mass(self, state: ServerState) -> float:
        """What the replica of a server weighs in the mean of all, where each has a whole one."""
        del state
        return 1.0

    def sites(self, workers: int) -> tuple[Site, ...]:
        """Who belongs on one host, where hosts are far from each other; empty if nobody does."""
        del workers
        return ()

    def check(self, workers: int) -> None:
        """Raise ValueError, naming the fix, if so many workers cannot be served."""
        if workers < 1:
            raise ValueError(f"a run needs at least 1 worker, not {workers}")

    def check_job(self, job: Job, workers: int) -> None:
        """Raise ValueError, naming the fix, if it cannot train this job; no process has started."""
        del workers
        if job.clip is not None and self.clips == "servers" and self.shards > 1:
            raise ValueError(
                f"{self} steps with a mean of which each of its {self.shards} servers has a part, "
                "so none knows its norm, which the job's clip limits: use servers=1, or allreduce()"
            )

    def check_places(self, hosts: Collection[str], devices: Collection[str]) -> None:
        """Raise ValueError, naming the fix, if members on these hosts and devices cannot do it.

        Args:
            hosts: the names of all on which somebody runs.
            devices: what the workers compute on, as torch names it.
        """
        if not self.shared_memory:
            return
        if len(set(hosts)) > 1:
            raise ValueError(
                f"{self} keeps the parameters in memory that only one host's processes share, and "
                f"this run has {len(set(hosts))} hosts: run it on one, or use a strategy that "
                "sends them, as synchronous() or asynchronous()"
            )
        others = sorted({device for device in devices if device != "cpu"})
        if self.local_optimizer and others:
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

    async def stand_by(self, replica: Replica, endpoint: Endpoint) -> None:
        """What a worker does, in place of `refresh`, before an evaluation that others make."""
        del endpoint
        replica.rests = False

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """What a server does about a call, and its state afterwards. Without servers: nothing."""
        del call
        return state, []

    def early(self, state: ServerState, call: Call) -> int:
        """How many calls are to be heard before this one: a runtime may hold it back until then.

        Where all are waited for, holding back costs no round, and sums are taken in one order. Of
        those that are held back when all have called, at least one must not be early.
        """
        del state, call
        return 0

    def on_repeat(self, state: ServerState, call: Call) -> Answer:
        """How a server answers a call that it has answered before: with what is there now.

        Parameters are sent only if the call has room for them: a runtime raises otherwise.
        """
        return Answer(
            call, Parameters(state.version), parameters=call.room and not self.shared_memory
        )

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """What a server does when a worker is gone, and its state afterwards."""
        del worker
        return state, []
