"""Islands: in lockstep inside each, and rarely in touch with one another."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.endpoint import Change, Parameters, Pull, Push, Rest, Terms
from manyhands.notation import Value  # noqa: TC001 - the types of fields are read
from manyhands.parts import part
from manyhands.protocols.averaging import Averaging  # noqa: TC001 - as above
from manyhands.protocols.between import Between, begin_between, early_in, left_between, on_between
from manyhands.protocols.combining import check_levels
from manyhands.protocols.diloco import DiLoCo
from manyhands.protocols.exchange import answer
from manyhands.protocols.islands import Island, again_on_island, left_island, on_island
from manyhands.protocols.local_sgd import LocalSgd  # noqa: TC001 - as above
from manyhands.protocols.protocol import ServerState, Site, StrategyProtocol
from manyhands.protocols.synchronous import Synchronous

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, LeasedBatch, Replica
    from manyhands.protocols.actions import Action, Answer, Call


@dataclass(frozen=True, repr=False)
class Hierarchical(StrategyProtocol):
    """Synchronous within an island, and something that meets rarely between the islands.

    The workers of an island take every step together, at servers of their own: W_i ← W_i −
    λ·mean(ΔW_n) over the n on island i. After every so many of these steps, one of them carries
    W_i to the servers between the islands, where each island is one worker of `outer`, and brings
    back what all came to. So these are servers of servers, and with outer=diloco(every=500) it is
    how models are trained between sites.

    Use it where some links are good and others are not: two hosts on a slow network, several
    sites. With outer=averaging(every=1) and plain SGD it is `synchronous`, exactly. A worker that
    is lost is missed by its island alone; an island that is lost, by the others for one meeting.

    Example: `hierarchical(outer=diloco(every=50))`

    Papers: Li et al., Scaling Distributed Machine Learning with the Parameter Server, OSDI 2014
    (servers); Douillard et al., DiLoCo, 2023 (islands).
    """

    name: ClassVar[str] = "hierarchical"
    support: ClassVar[Literal["experimental"]] = "experimental"
    keeps: ClassVar[bool] = True
    clips: ClassVar[Literal["servers"]] = "servers"

    inner: Value = field(default_factory=Synchronous)
    """Within an island: synchronous, with one server."""
    outer: Averaging | LocalSgd | DiLoCo = field(default_factory=DiLoCo)
    """Between the islands, with one server."""
    islands: int = 2
    """How many, but no more than workers; these are divided among them in the order of ranks."""

    def __post_init__(self) -> None:
        check_levels(self.islands, self.inner, self.outer)

    @property
    def _inner(self) -> Synchronous:
        return check_levels(self.islands, self.inner, self.outer)

    @property
    def lockstep(self) -> bool:
        """The workers of an island wait for each other, and the islands do."""
        return True

    def by_rank(self, workers: int) -> bool:
        """Everybody gives to every round."""
        del workers
        return True

    @property
    def shards(self) -> int:
        """A server has everything."""
        return 1

    def count_servers(self, workers: int) -> int:
        """One for each island, and one between them."""
        return self._count(workers) + 1

    def shared_by(self, workers: int) -> range:
        """The one between the islands has what all came to."""
        return range(self._count(workers), self._count(workers) + 1)

    def members(self, island: int, workers: int) -> range:
        """The ranks that live on an island."""
        return range(workers)[part(workers, island, self._count(workers))]

    def sites(self, workers: int) -> tuple[Site, ...]:
        """Every island, and the server between them."""
        islands = range(self._count(workers))
        own = [(self.members(island, workers), range(island, island + 1)) for island in islands]
        return (*own, (range(0), self.shared_by(workers)))

    def _count(self, workers: int) -> int:
        return min(self.islands, workers)

    def _names(self, replica: Replica) -> tuple[str, str]:
        """The server of a worker's island, and the one between the islands."""
        islands = range(self._count(replica.terms.workers))
        own = next(i for i in islands if replica.rank in self.members(i, replica.terms.workers))
        return replica.servers[own], replica.servers[len(islands)]

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """Step with the island; what was made counts when the islands have met."""
        own, between = self._names(replica)
        await self._join(replica, endpoint)
        alone: list[LeasedBatch] = []
        async for batch in replica.batches():
            if batch is None:
                replica.rests = True
                endpoint.post(own, Rest(), into=replica.parameters(0))
            else:
                if replica.rests:
                    await self._join(replica, endpoint)
                await replica.gradient(batch)
                update = replica.update(0) if batch.samples else None
                push = Push(replica.versions[0], batch.samples, batch.dealt, total=batch.total)
                endpoint.post(own, push, payload=update, into=replica.parameters(0))
                alone.append(batch)
            if await self._hear(replica, endpoint):
                replica.commit(*alone)
                alone.clear()
            if batch is None:
                # Should the rest of the island be lost, its own server could send nobody to say so.
                endpoint.post(between, Rest())
                await answer(endpoint, between)

    async def refresh(self, replica: Replica, endpoint: Endpoint) -> list[int]:
        """Look at what the islands came to last, without taking part."""
        _, between = self._names(replica)
        endpoint.post(between, Pull(looks=True), into=replica.parameters(0))
        return [(await answer(endpoint, between)).version]

    async def _join(self, replica: Replica, endpoint: Endpoint) -> None:
        endpoint.post(self._names(replica)[0], Pull(), into=replica.parameters(0))
        await self._hear(replica, endpoint)
        replica.rests = False
        replica.adopt()

    async def _hear(self, replica: Replica, endpoint: Endpoint) -> bool:
        """Hear the island's server and go where it says; whether the islands have met by then."""
        own, _ = self._names(replica)
        said = await answer(endpoint, own)
        if said.errand not in ("", "done"):
            replica.lay_aside()
            await self._carry(replica, endpoint, said)
            back = Change(said.version, errand=said.errand)
            endpoint.post(own, back, payload=replica.moved(0), into=replica.parameters(0))
            said = await answer(endpoint, own)
        replica.versions[0] = said.version
        return said.errand == "done"

    async def _carry(self, replica: Replica, endpoint: Endpoint, said: Parameters) -> None:
        """Carry the island's parameters to the others, and bring back what all came to."""
        _, between = self._names(replica)
        parameters = replica.parameters(0)
        if said.errand == "join":
            endpoint.post(between, Pull(), into=parameters)
            await answer(endpoint, between)
        elif said.samples or said.errand == "meet":
            push = Push(0, said.samples)
            endpoint.post(between, push, payload=parameters, into=parameters)
            await answer(endpoint, between)

    def begin(self, terms: Terms) -> ServerState:
        """A server of an island waits for its workers, the one between them for the islands."""
        workers, islands = terms.workers, range(self._count(terms.workers))
        if terms.number in islands:
            ranks = self.members(terms.number, workers)
            present = frozenset(f"worker-{rank}" for rank in ranks)
            return Island(replace(terms, workers=len(ranks)), present=present)
        return begin_between(terms, [self.members(island, workers) for island in islands])

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Take a round with the island, or a meeting with the islands."""
        if isinstance(state, Island):
            return on_island(self._inner, self.outer, state, call)
        assert isinstance(state, Between)
        return on_between(self.outer, state, call)

    def early(self, state: ServerState, call: Call) -> int:
        """Islands add up in the order of ranks, and so does the server between them."""
        return early_in(self._inner, self.outer, state, call)

    def on_repeat(self, state: ServerState, call: Call) -> Answer:
        """With what was said before, if it was an errand that nobody is on yet."""
        if isinstance(state, Island):
            return again_on_island(state, call)
        return super().on_repeat(state, call)

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """Wait for it no longer; if it was on an errand, send another one."""
        if isinstance(state, Island):
            return left_island(self._inner, self.outer, state, worker)
        assert isinstance(state, Between)
        return left_between(self.outer, state, worker)
