"""Islands: in lockstep inside each, and connected by one worker at a time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.endpoint import Pull, Terms
from manyhands.notation import Value  # noqa: TC001 - the types of fields are read
from manyhands.protocols.averaging import Meeting
from manyhands.protocols.diloco import DiLoCo
from manyhands.protocols.hierarchical.inner_server import (
    Island,
    again_on_island,
    left_island,
    on_island,
)
from manyhands.protocols.hierarchical.inner_sum import Gathering, Gathers
from manyhands.protocols.hierarchical.levels import check_levels
from manyhands.protocols.hierarchical.outer_server import (
    Between,
    begin_between,
    early_in,
    left_between,
    on_between,
)
from manyhands.protocols.hierarchical.outer_sum import Unites, Uniting, begin_uniting
from manyhands.protocols.hierarchical.worker import InnerWorker, OuterExchange
from manyhands.protocols.parts.pull_and_rest import answer
from manyhands.protocols.protocol import ServerState, Site, StrategyProtocol
from manyhands.protocols.synchronous import Synchronous
from manyhands.sampling.division import part

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, Replica
    from manyhands.protocols.actions import Action, Answer, Call


@dataclass(frozen=True, repr=False)
class Hierarchical(StrategyProtocol):
    """Servers of servers: synchronous within an island, another strategy between the islands.

    The workers of an island take every step together, at servers of their own: W_i ← W_i −
    λ·mean(ΔW_n) over the n on island i. After every so many of these steps, one of them carries
    W_i to the servers between the islands, where each island is one worker of `outer`, and brings
    back what all came to. With outer=diloco(every=500) it is how models are trained between sites.

    With outer=synchronous() islands pass the sum of their gradients on, and the server between
    them takes one step with the mean over all: `synchronous`, exactly, under any optimizer.

    Use it where some links are good and others are not: two hosts on a slow network, several
    sites. A worker that is lost is missed by its island alone; an island that is lost, by the
    others for one meeting.

    Example: `hierarchical(outer=diloco(every=50))`

    Papers: Li et al., Scaling Distributed Machine Learning with the Parameter Server, OSDI 2014
    (servers); Douillard et al., DiLoCo, 2023 (islands).
    """

    name: ClassVar[str] = "hierarchical"
    support: ClassVar[Literal["experimental"]] = "experimental"
    own_parameters: ClassVar[bool] = True
    clips: ClassVar[Literal["servers"]] = "servers"

    inner: Value = field(default_factory=Synchronous)
    """Within an island: synchronous, with one server."""
    outer: Value = field(default_factory=DiLoCo)
    """Between the islands: averaging, local_sgd, diloco or synchronous, with one server."""
    islands: int = 2
    """How many, but no more than workers; these are divided among them in the order of ranks."""

    def __post_init__(self) -> None:
        check_levels(self.islands, self.inner, self.outer)

    @property
    def _inner(self) -> Synchronous:
        assert isinstance(self.inner, Synchronous)
        return self.inner

    @property
    def _meeting(self) -> Meeting:
        assert isinstance(self.outer, Meeting)
        return self.outer

    @property
    def _sums(self) -> bool:
        """Whether islands pass sums of gradients on, and not their parameters."""
        return isinstance(self.outer, Synchronous)

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
        """Step with the island, and be its messenger when it is asked to."""
        kind = OuterExchange if self._sums else InnerWorker
        await kind(replica, endpoint, *self._names(replica)).work()

    async def refresh(self, replica: Replica, endpoint: Endpoint) -> list[int]:
        """Look at what the islands came to last, without taking part."""
        _, between = self._names(replica)
        endpoint.post(between, Pull(looks=True), into=replica.parameters(0))
        return [(await answer(endpoint, between)).version]

    def begin(self, terms: Terms) -> ServerState:
        """A server of an island waits for its workers, the one between them for the islands."""
        workers, islands = terms.workers, range(self._count(terms.workers))
        if terms.number in islands:
            ranks = self.members(terms.number, workers)
            present = frozenset(f"worker-{rank}" for rank in ranks)
            kind = Gathering if self._sums else Island
            return kind(replace(terms, workers=len(ranks)), present=present)
        begin = begin_uniting if self._sums else begin_between
        return begin(terms, [self.members(island, workers) for island in islands])

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Take a round with the island, or a meeting with the islands."""
        match state:
            case Gathering() | Uniting():
                return _summing(state).on_message(state, call)
            case Island():
                return on_island(self._inner, self._meeting, state, call)
        assert isinstance(state, Between)
        return on_between(self._meeting, state, call)

    def early(self, state: ServerState, call: Call) -> int:
        """Islands add up in the order of ranks, and so does the server between them."""
        if isinstance(state, Gathering | Uniting):
            return _summing(state).early(state, call)
        return early_in(self._inner, self._meeting, state, call)

    def on_repeat(self, state: ServerState, call: Call) -> Answer:
        """With what was said before, if it was an errand that nobody is on yet."""
        match state:
            case Gathering() | Uniting():
                return _summing(state).on_repeat(state, call)
            case Island():
                return again_on_island(state, call)
        return super().on_repeat(state, call)

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """Wait for it no longer; if it was on an errand, send another one."""
        match state:
            case Gathering() | Uniting():
                return _summing(state).on_leave(state, worker)
            case Island():
                return left_island(self._inner, self._meeting, state, worker)
        assert isinstance(state, Between)
        return left_between(self._meeting, state, worker)


_GATHERS, _UNITES = Gathers(), Unites()


def _summing(state: Gathering | Uniting) -> Synchronous:
    return _GATHERS if isinstance(state, Gathering) else _UNITES
