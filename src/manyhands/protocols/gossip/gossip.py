"""Gossip: every worker averages its replica with those of a few neighbours."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.costs import StepPayload
from manyhands.endpoint import (
    Change,
    Join,
    MembershipChanged,
    Mix,
    Parameters,
    Pull,
    Push,
    Rest,
    Terms,
)
from manyhands.protocols.actions import Action, Answer, Call, Shift
from manyhands.protocols.compression.coding import Compressed
from manyhands.protocols.gossip import lockstep, pairwise
from manyhands.protocols.gossip.lockstep import GossipState
from manyhands.protocols.gossip.topologies import GRAPHS, Graph
from manyhands.protocols.parts.pull_and_rest import answer, take_mean
from manyhands.protocols.parts.shares import ALIKE
from manyhands.protocols.parts.successor import copy_another
from manyhands.protocols.protocol import ServerState, StrategyProtocol

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, LeasedBatch, Replica
    from manyhands.protocols.compression.coding import Coding


@dataclass(frozen=True, repr=False)
class Gossip(StrategyProtocol, Compressed):
    """Take local steps, and average parameters with neighbours: there is no central server.

    In lockstep, x_i ← Σ_j W_ij·x_j − η·∇f_i(x_i) over the neighbours j and i itself, with equal
    weights (D-PSGD); the weight of an absent neighbour is added to i's own. Asynchronously, a
    worker picks one neighbour at random, both replicas become the mean of the two, and the worker
    steps from there with the gradient of its parameters before (AD-PSGD); no worker waits, so
    there is no deadlock. In both orders replicas are exchanged while the gradient is computed, and
    the averaging preserves the mean of all replicas, which is the model.

    A worker that was lost and returns copies the replica of another one. It takes part in rounds
    that its neighbours begin after they know of it; they refuse it in those that are under way.

    Use it if no host has the bandwidth for a parameter server, or if links are slow and workers
    differ in speed: a worker sends m bytes to each neighbour and receives m, whatever the number
    of workers. The replicas differ, and more so with fewer neighbours.

    Example: `gossip(graph=ring, order=asynchronous)`

    Papers: Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?, NIPS 2017
    (D-PSGD); Lian et al., Asynchronous Decentralized Parallel SGD, ICML 2018 (AD-PSGD).
    """

    name: ClassVar[str] = "gossip"
    support: ClassVar[Literal["experimental"]] = "experimental"
    lacks: ClassVar[dict[str, str]] = {"shares": ALIKE}
    local_optimizer: ClassVar[bool] = True
    own_parameters: ClassVar[bool] = True
    peer_servers: ClassVar[bool] = True
    peers_return: ClassVar[bool] = True
    servers = 1

    graph: Literal["ring", "exponential", "random_pairs"] = "ring"
    """The neighbours of a worker: the two ranks beside it on a ring; the ranks 1, 2, 4, … away; or
    one other worker, a different one in every round."""
    order: Literal["lockstep", "asynchronous"] = "lockstep"
    """Whether neighbours wait for each other."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lockstep and self.answer_codec != "same":
            given = "none" if self.answer_codec is None else self.answer_codec
            raise ValueError(
                f"answer_codec={given} encodes answers, and in lockstep "
                "neighbours send each other pushes only: leave it out, or use order=asynchronous"
            )

    @property
    def lockstep(self) -> bool:
        """Neighbours wait for each other, unless they are asynchronous."""
        return self.order == "lockstep"

    def by_rank(self, workers: int) -> bool:
        """In lockstep, neighbours wait for each other in every round."""
        del workers
        return self.lockstep

    @property
    def neighbours(self) -> Graph:
        """The topology: the neighbours of a rank in a round."""
        return GRAPHS[self.graph]

    def coding_of(self, server: int, workers: int) -> Coding | None:
        """Replicas develop on their own: the difference to what was sent before is sent."""
        del server, workers
        return self.coding("states")

    def step_payload(self, workers: int, size: int) -> StepPayload:
        """In lockstep a worker sends its replica to every neighbour, and receives theirs.

        Asynchronously each step exchanges two replicas with one neighbour; a worker takes part in
        its own exchange and, on average, in one of another worker.
        """
        if self.graph == "random_pairs":
            # With an odd number one worker has no partner in a round.
            neighbours = (workers - workers % 2) / workers
        else:
            neighbours = len(self.neighbours(0, workers, 0))
        pushed, answered = self.exchanged(size, 1)
        both = neighbours * pushed if self.lockstep else min(1, neighbours) * (pushed + answered)
        return StepPayload(sent=both, received=both, between_workers=True)

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """Exchange replicas while the gradient is computed; then mix, and step."""
        read = await self._begin(replica, endpoint)
        last = -1
        async for batch in replica.batches():
            if batch is None:
                await self._rest(replica, endpoint)
                continue
            if self.order == "asynchronous":
                read = await pairwise.average_with_one(
                    self.neighbours, replica, endpoint, batch, read
                )
            elif batch.round > last and not replica.rests:
                read = await self._mix_with_neighbours(replica, endpoint, batch)
                last = batch.round
            elif batch.samples:
                # The batch was leased to a lost worker and its round is over: take a local step.
                await replica.gradient(batch)
                read = await pairwise.step(replica, endpoint, batch, read)
            replica.commit(batch)

    async def _begin(self, replica: Replica, endpoint: Endpoint) -> int:
        """Read the worker's own replica; a worker that returns starts from another's."""
        own = replica.servers[replica.rank]
        endpoint.post(own, Pull(), into=replica.parameters(0))
        read = (await answer(endpoint, own)).version
        if not replica.returns:
            return read
        replica.lay_aside()
        await copy_another(replica, endpoint)
        replica.compare(1.0)
        return await pairwise.change(replica, endpoint, read)

    async def _mix_with_neighbours(
        self, replica: Replica, endpoint: Endpoint, batch: LeasedBatch
    ) -> int:
        """Send the replica to every neighbour, compute, average with theirs, and step.

        x_i(t+1) = Σ_j W_ij·x_j(t) − η·∇f_i(x_i(t)): the replica is sent before the step.
        """
        own, number = replica.servers[replica.rank], batch.round
        ranks = self.neighbours(replica.rank, replica.terms.workers, number)
        there = [rank for rank in ranks if endpoint.reaches(replica.servers[rank])]
        parameters = replica.parameters(0)
        for rank in there:
            push = Push(number, batch.samples)
            endpoint.post(replica.servers[rank], push, payload=parameters)
        # After the pushes, with the neighbours that were sent one: the server accepts replicas of
        # these only, so of two neighbours both average or neither does.
        endpoint.post(own, Join(number, tuple(there)))
        await answer(endpoint, own)
        await replica.gradient(batch)
        taking_part = []
        for rank in there:
            with suppress(MembershipChanged):
                if (await answer(endpoint, replica.servers[rank])).applied:
                    # A neighbour that refused averages without this replica, so its own is left out
                    # here too: the mean of all stays what it was.
                    taking_part.append(rank)
        replica.lay_aside()
        replica.apply(batch)
        replica.compare(1.0)
        mix = Mix(number, tuple(taking_part))
        endpoint.post(own, mix, payload=replica.update(0), into=parameters)
        read = (await answer(endpoint, own)).version
        replica.adopt()
        return read

    async def _rest(self, replica: Replica, endpoint: Endpoint) -> None:
        """Take part in no round until the next evaluation; other workers have the last samples."""
        own = replica.servers[replica.rank]
        replica.rests = True
        endpoint.post(own, Rest())
        await answer(endpoint, own)

    async def refresh(self, replica: Replica, endpoint: Endpoint) -> list[int]:
        """Load the mean of all reachable replicas."""
        replica.rests = False
        return [said.version for said in await take_mean(replica, endpoint)]

    def begin(self, terms: Terms) -> GossipState:
        """No round is open, and nothing has arrived."""
        return GossipState(terms)

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Average received replicas into the one that this server holds."""
        assert isinstance(state, GossipState)
        match call.message:
            case Change(version=read):
                now = replace(state, version=state.version + 1)
                back = Answer(call, Parameters(now.version))
                return now, [Shift(call, state.version - read), back]
            case _ if self.order == "lockstep":
                return lockstep.decide(state, call, self.neighbours)
            case _:
                return pairwise.decide(state, call)

    def on_repeat(self, state: ServerState, call: Call) -> Answer:
        """Repeat the first answer: an average is not computed twice, and a refusal stands."""
        assert isinstance(state, GossipState)
        if isinstance(call.message, Push):
            return lockstep.repeat(state, call) if self.lockstep else pairwise.repeat(state, call)
        return super().on_repeat(state, call)

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """Stop waiting for the worker."""
        assert isinstance(state, GossipState)
        return lockstep.leave(state, worker)

    def on_return(self, state: ServerState, worker: str) -> ServerState:
        """Average with the worker again, from the next round on."""
        assert isinstance(state, GossipState)
        return replace(state, lost=state.lost - {worker})
