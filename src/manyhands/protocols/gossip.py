"""Gossip: no server, every worker mixes its replica with some neighbours' only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.endpoint import Change, MembershipChanged, Parameters, Pull, Push, Rest, Terms
from manyhands.protocols.actions import Action, Add, Answer, Call, Move, Shift
from manyhands.protocols.exchange import answer
from manyhands.protocols.graphs import GRAPHS, Graph
from manyhands.protocols.protocol import ServerState, StrategyProtocol

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, LeasedBatch, Replica


@dataclass(frozen=True)
class Mixing(ServerState):
    """One worker's replica, and what is on its way into it."""

    present: frozenset[str] = frozenset()
    """The workers that may be waited for."""
    given: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """By round, who has given a replica to be mixed in."""
    waiting: dict[int, Call] = field(default_factory=dict)
    """By round, the worker's own call, to be answered when its neighbours' replicas are in."""
    mixed: int = -1
    """The last round that is done."""


@dataclass(frozen=True, repr=False)
class Gossip(StrategyProtocol):
    """Step alone, and mix with neighbours: there is no centre.

    In lockstep, x_i ← Σ_j W_ij·(x_j − η·∇f_j(x_j)) over the neighbours j and i itself, with equal
    weights (decentralised SGD). Asynchronously, a worker steps whenever it is ready, picks one
    neighbour at random, and both become the mean of the two (AD-PSGD); nobody waits for anybody,
    so there is nothing to deadlock on. Either way the mixing keeps the mean of all replicas, which
    is the model.

    Use it where no machine can carry everybody's traffic, or links are slow and workers unequal: a
    worker exchanges 2·m bytes with each neighbour, however many workers there are. The replicas
    differ, and the more so the fewer the neighbours are.

    Example: `gossip(graph=ring, order=asynchronous)`

    Papers: Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?, NIPS 2017
    (D-PSGD); Lian et al., Asynchronous Decentralized Parallel SGD, ICML 2018 (AD-PSGD).
    """

    name: ClassVar[str] = "gossip"
    support: ClassVar[Literal["experimental"]] = "experimental"
    local: ClassVar[bool] = True
    keeps: ClassVar[bool] = True
    peers: ClassVar[bool] = True
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
        """Step alone, then mix."""
        read = await self._begin(replica, endpoint)
        last = -1
        async for batch in replica.batches():
            if batch is None:
                await self._rest(replica, endpoint)
                continue
            await replica.gradient(batch)
            if self.order == "asynchronous":
                read = await self._meet_one(replica, endpoint, batch, read)
            elif batch.round > last:
                replica.apply(batch)
                await self._meet_all(replica, endpoint, batch)
                last = batch.round
            else:
                # Its first holder died, and its round was mixed without it: step alone.
                read = await self._step(replica, endpoint, batch, read)
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
            return await self._change(replica, endpoint, read)
        return read

    async def _meet_one(
        self, replica: Replica, endpoint: Endpoint, batch: LeasedBatch, read: int
    ) -> int:
        """x_i ← x_i − η·∇f; then x_i and x_j both become their mean."""
        read = await self._step(replica, endpoint, batch, read)
        ranks = self.neighbours(replica.rank, replica.terms.workers, endpoint.rng.getrandbits(30))
        there = [replica.servers[rank] for rank in ranks if endpoint.reaches(replica.servers[rank])]
        if not there:
            return read
        other = there[endpoint.rng.randrange(len(there))]
        payload, into = replica.parameters(0), replica.beside(0)
        endpoint.post(other, Push(read, batch.samples), payload=payload, into=into)
        try:
            await answer(endpoint, other)
        except MembershipChanged:
            return read
        replica.compare(-0.5)
        return await self._change(replica, endpoint, read)

    async def _step(
        self, replica: Replica, endpoint: Endpoint, batch: LeasedBatch, read: int
    ) -> int:
        replica.lay_aside()
        replica.apply(batch)
        replica.compare(1.0)
        return await self._change(replica, endpoint, read)

    async def _change(self, replica: Replica, endpoint: Endpoint, read: int) -> int:
        """Add the update to this worker's own replica, which others may have mixed with since."""
        own = replica.servers[replica.rank]
        payload, into = replica.update(0), replica.parameters(0)
        endpoint.post(own, Change(read), payload=payload, into=into)
        return (await answer(endpoint, own)).version

    async def _meet_all(self, replica: Replica, endpoint: Endpoint, batch: LeasedBatch) -> None:
        """Give the replica to every neighbour, and have it back mixed with theirs."""
        own, terms = replica.servers[replica.rank], replica.terms
        ranks = self.neighbours(replica.rank, terms.workers, batch.round)
        names = [replica.servers[rank] for rank in ranks]
        others = [name for name in names if endpoint.reaches(name)]
        parameters, beside = replica.parameters(0), replica.beside(0)
        number = batch.round
        replica.lay_aside()
        for name in others:
            endpoint.post(name, Push(number, batch.samples), payload=beside)
        endpoint.post(own, Push(number, batch.samples), payload=parameters, into=parameters)
        for name in (*others, own):
            try:
                await answer(endpoint, name)
            except MembershipChanged:
                continue
        replica.adopt()

    async def _rest(self, replica: Replica, endpoint: Endpoint) -> None:
        there = [name for name in replica.servers if endpoint.reaches(name)]
        for name in there:
            endpoint.post(name, Rest())
        for name in there:
            try:
                await answer(endpoint, name)
            except MembershipChanged:
                continue

    async def refresh(self, replica: Replica, endpoint: Endpoint) -> list[int]:
        """The mean of all replicas that can be reached."""
        seen = 0
        versions = []
        for name in replica.servers:
            if not endpoint.reaches(name):
                continue
            into = replica.beside(0) if seen else replica.parameters(0)
            endpoint.post(name, Pull(), into=into)
            try:
                versions.append((await answer(endpoint, name)).version)
            except MembershipChanged:
                continue
            if seen:
                replica.draw(1 / (seen + 1))
            seen += 1
        return versions

    def begin(self, terms: Terms) -> Mixing:
        """All take part."""
        return Mixing(terms, present=frozenset(f"worker-{rank}" for rank in range(terms.workers)))

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Mix what comes into the replica that is here."""
        assert isinstance(state, Mixing)
        mine = call.worker == f"worker-{state.terms.number}"
        match call.message:
            case Change(version=read):
                now = replace(state, version=state.version + 1)
                back = Answer(call, Parameters(now.version))
                return now, [Shift(call, state.version - read), back]
            case Push() if self.order == "asynchronous":
                now = replace(state, version=state.version + 1)
                back = Answer(call, Parameters(now.version))
                return now, [Add(call, 1.0), back, Move(by=0.5, over=1.0)]
            case Push(version=number):
                return self._gather(state, call, number, mine=mine)
            case Pull():
                there = replace(state, present=state.present | {call.worker})
                return there, [Answer(call, Parameters(state.version))]
            case Rest():
                done = Answer(call, Parameters(state.version), parameters=False)
                return self._mix(replace(state, present=state.present - {call.worker}), [done])
            case _:
                return state, []

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """Wait for it no longer."""
        assert isinstance(state, Mixing)
        return self._mix(replace(state, present=state.present - {worker}), [])

    def _gather(
        self, state: Mixing, call: Call, number: int, *, mine: bool
    ) -> tuple[Mixing, list[Action]]:
        got = Answer(call, Parameters(state.version), parameters=False)
        if number <= state.mixed and not mine:
            # The round was closed without it, because it was thought to be gone.
            return state, [got]
        there = replace(
            state,
            present=state.present | {call.worker},
            given={**state.given, number: (*state.given.get(number, ()), call.worker)},
            waiting={**state.waiting, number: call} if mine else state.waiting,
        )
        # Sums are told apart by their rounds; the sum of the asynchronous order is number 0.
        added = Add(call, 1.0, pot=number + 1)
        return self._mix(there, [added] if mine else [added, got])

    def _mix(self, state: Mixing, actions: list[Action]) -> tuple[Mixing, list[Action]]:
        """Conclude every round that the worker itself and all its neighbours have given to."""
        for number, call in sorted(state.waiting.items()):
            ranks = self.neighbours(state.terms.number, state.terms.workers, number)
            awaited = {f"worker-{rank}" for rank in ranks} & state.present
            givers = state.given[number]
            if not awaited <= set(givers):
                continue
            waiting = {at: one for at, one in state.waiting.items() if at != number}
            state = replace(
                state,
                version=state.version + 1,
                given={at: who for at, who in state.given.items() if at > number or at in waiting},
                waiting=waiting,
                mixed=max(state.mixed, number),
            )
            move = Move(by=1.0, over=len(givers), pot=number + 1)
            actions = [*actions, move, Answer(call, Parameters(state.version))]
        return state, actions
