"""Gossip: no server, every worker mixes its replica with some neighbours' only."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

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
from manyhands.protocols.gossip import lockstep, pairwise
from manyhands.protocols.gossip.lockstep import Mixing
from manyhands.protocols.gossip.topologies import GRAPHS, Graph
from manyhands.protocols.parts.pull_and_rest import answer, take_mean
from manyhands.protocols.protocol import ServerState, StrategyProtocol

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, LeasedBatch, Replica


@dataclass(frozen=True, repr=False)
class Gossip(StrategyProtocol):
    """Step alone, and mix with neighbours: there is no centre.

    In lockstep, x_i ← Σ_j W_ij·x_j − η·∇f_i(x_i) over the neighbours j and i itself, with equal
    weights (D-PSGD); the weight of one that is not there is i's own. Asynchronously, a worker picks
    one neighbour at random, both become the mean of the two, and the worker steps from there with
    the gradient of where it was (AD-PSGD); nobody waits for anybody, so there is nothing to
    deadlock on. Either way replicas are exchanged while the gradient is computed, and the mixing
    keeps the mean of all replicas, which is the model.

    Use it where no machine can carry everybody's traffic, or links are slow and workers unequal: a
    worker exchanges 2·m bytes with each neighbour, however many workers there are. The replicas
    differ, and the more so the fewer the neighbours are.

    Example: `gossip(graph=ring, order=asynchronous)`

    Papers: Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?, NIPS 2017
    (D-PSGD); Lian et al., Asynchronous Decentralized Parallel SGD, ICML 2018 (AD-PSGD).
    """

    name: ClassVar[str] = "gossip"
    support: ClassVar[Literal["experimental"]] = "experimental"
    local_optimizer: ClassVar[bool] = True
    own_parameters: ClassVar[bool] = True
    peer_servers: ClassVar[bool] = True
    servers = 1

    graph: Literal["ring", "exponential", "random_pairs"] = "ring"
    """Who are neighbours: those beside; those 1, 2, 4, … away; or another one in every round."""
    order: Literal["lockstep", "asynchronous"] = "lockstep"
    """Whether neighbours wait for each other."""

    @property
    def lockstep(self) -> bool:
        """Neighbours wait for each other, unless they are asynchronous."""
        return self.order == "lockstep"

    def by_rank(self, workers: int) -> bool:
        """Neighbours wait for each other in every round; others may be further ahead."""
        del workers
        return self.lockstep

    @property
    def neighbours(self) -> Graph:
        """Who mixes with whom in which round."""
        return GRAPHS[self.graph]

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """Exchange replicas while the gradient is computed; then mix, and step."""
        read = await self._begin(replica, endpoint)
        last = -1
        async for batch in replica.batches():
            if batch is None:
                await self._rest(replica, endpoint)
                continue
            if self.order == "asynchronous":
                read = await pairwise.meet_one(self.neighbours, replica, endpoint, batch, read)
            elif batch.round > last and not replica.rests:
                read = await self._meet_all(replica, endpoint, batch)
                last = batch.round
            elif batch.samples:
                # Its first holder died, and its round is mixed without it: step alone.
                await replica.gradient(batch)
                read = await pairwise.step(replica, endpoint, batch, read)
            replica.commit(batch)

    async def _begin(self, replica: Replica, endpoint: Endpoint) -> int:
        """Take up the replica that is here; one who returns takes a neighbour's as its own."""
        own = replica.servers[replica.rank]
        endpoint.post(own, Pull(), into=replica.parameters(0))
        read = (await answer(endpoint, own)).version
        workers = replica.terms.workers
        for rank in self.neighbours(replica.rank, workers, 0) if replica.returns else ():
            if not endpoint.reaches(replica.servers[rank]):
                continue
            replica.lay_aside()
            endpoint.post(replica.servers[rank], Pull(), into=replica.parameters(0))
            try:
                await answer(endpoint, replica.servers[rank])
            except MembershipChanged:
                continue
            replica.compare(1.0)
            return await pairwise.change(replica, endpoint, read)
        return read

    async def _meet_all(self, replica: Replica, endpoint: Endpoint, batch: LeasedBatch) -> int:
        """Give the replica to every neighbour, compute, and have it mixed with theirs; then step.

        x_i(t+1) = Σ_j W_ij·x_j(t) − η·∇f_i(x_i(t)): what is given is from before the step.
        """
        own, number = replica.servers[replica.rank], batch.round
        ranks = self.neighbours(replica.rank, replica.terms.workers, number)
        there = [rank for rank in ranks if endpoint.reaches(replica.servers[rank])]
        parameters = replica.parameters(0)
        for rank in there:
            push = Push(number, batch.samples)
            endpoint.post(replica.servers[rank], push, payload=parameters)
        endpoint.post(own, Join(number, tuple(there)))
        await answer(endpoint, own)
        await replica.gradient(batch)
        taking_part = []
        for rank in there:
            with suppress(MembershipChanged):
                if (await answer(endpoint, replica.servers[rank])).applied:
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
        """Be in no round until the next evaluation: others may have what is left of this one."""
        own = replica.servers[replica.rank]
        replica.rests = True
        endpoint.post(own, Rest())
        await answer(endpoint, own)

    async def refresh(self, replica: Replica, endpoint: Endpoint) -> list[int]:
        """The mean of all replicas that can be reached."""
        replica.rests = False
        return [said.version for said in await take_mean(replica, endpoint)]

    def begin(self, terms: Terms) -> Mixing:
        """Nothing is on its way."""
        return Mixing(terms)

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Mix what comes into the replica that is here."""
        assert isinstance(state, Mixing)
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
        """A meeting was as it was, and what was refused stays so."""
        assert isinstance(state, Mixing)
        if isinstance(call.message, Push):
            return lockstep.again(state, call) if self.lockstep else pairwise.again(state, call)
        return super().on_repeat(state, call)

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """Wait for it no longer."""
        assert isinstance(state, Mixing)
        return lockstep.leave(state, worker)
