"""Hierarchical training: synchronous within an island, another strategy between the islands."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.endpoint import Pull, Terms
from manyhands.notation import Value  # noqa: TC001 - the types of fields are read
from manyhands.protocols.averaging import LocalSteps
from manyhands.protocols.compression.coding import Compressed
from manyhands.protocols.diloco import DiLoCo
from manyhands.protocols.hierarchical.inner_server import (
    Island,
    left_island,
    on_island,
    repeat_on_island,
)
from manyhands.protocols.hierarchical.inner_sum import InnerSum, InnerSumRound
from manyhands.protocols.hierarchical.levels import check_levels, rounds_of, step_payload
from manyhands.protocols.hierarchical.outer_server import (
    OuterRound,
    begin_outer,
    early_in,
    left_outer,
    on_outer,
)
from manyhands.protocols.hierarchical.outer_sum import OuterSum, OuterSumRound, begin_outer_sum
from manyhands.protocols.hierarchical.worker import InnerWorker, OuterExchange
from manyhands.protocols.parts.pull_and_rest import answer
from manyhands.protocols.protocol import ServerState, StrategyProtocol, WorkerGroup
from manyhands.protocols.synchronous import Synchronous
from manyhands.sampling.division import part

if TYPE_CHECKING:
    from manyhands.costs import StepPayload
    from manyhands.endpoint import Endpoint, Replica
    from manyhands.protocols.actions import Action, Answer, Call
    from manyhands.protocols.compression.coding import Coding
    from manyhands.runtime_needs import RuntimeNeeds


_ISLANDS = 2  # where nothing determines their number


@dataclass(frozen=True, repr=False)
class Hierarchical(StrategyProtocol):
    """Two levels of servers: synchronous within an island, another strategy between the islands.

    The workers of an island take every step together, on the island's own server: W_i ← W_i −
    λ·mean(ΔW_n) over the workers n of island i. Every `outer.every` of these steps, one of them
    sends W_i to the outer server, where each island is one worker of `outer`, and returns the
    result to the island's server. With outer=diloco(every=500) it trains models across sites.

    With outer=synchronous() islands forward the sum of their gradients, and the outer server takes
    one step with the mean over all workers: exactly `synchronous`, with any optimizer.

    Use it if some links are fast and others are slow: two hosts on a slow network, several sites.
    The loss of a worker affects only its island; the loss of an island delays the others for at
    most one synchronisation.

    Example: `hierarchical(outer=diloco(every=50))`

    Papers: Li et al., Scaling Distributed Machine Learning with the Parameter Server, OSDI 2014
    (servers); Douillard et al., DiLoCo, 2023 (islands).
    """

    name: ClassVar[str] = "hierarchical"
    support: ClassVar[Literal["experimental"]] = "experimental"
    lacks: ClassVar[dict[str, str]] = {
        "codec": "give it to a level, as in outer=diloco(codec=topk(0.01))",
        "shares": "islands have even parts; use synchronous(shares=by_speed) without islands",
        "aggregate": "an island has few workers to compare; use synchronous()",
    }
    own_parameters: ClassVar[bool] = True
    clips: ClassVar[Literal["servers"]] = "servers"

    inner: Value = field(default_factory=Synchronous)
    """Strategy within an island: synchronous, with one server."""
    outer: Value = field(default_factory=DiLoCo)
    """Strategy between islands: averaging, local_sgd, diloco or synchronous, with one server."""
    islands: int | None = None
    """Number of islands, at most one per worker; workers are divided among them in rank order.
    None: one for each site of the declared cluster, or else for each host; 2 without either."""

    def __post_init__(self) -> None:
        check_levels(self._islands, self.inner, self.outer)

    @property
    def _islands(self) -> int:
        return _ISLANDS if self.islands is None else self.islands

    @property
    def _inner(self) -> Synchronous:
        assert isinstance(self.inner, Synchronous)
        return self.inner

    @property
    def _outer(self) -> LocalSteps:
        assert isinstance(self.outer, LocalSteps)
        return self.outer

    @property
    def _sums(self) -> bool:
        """Whether islands forward sums of gradients instead of parameters."""
        return isinstance(self.outer, Synchronous)

    def needs(self, workers: int) -> RuntimeNeeds:
        """As of any protocol, and the length of a round of the islands."""
        return replace(super().needs(workers), rounds=rounds_of(self.outer))

    @property
    def lockstep(self) -> bool:
        """Workers of an island wait for each other, and so do the islands."""
        return True

    def by_rank(self, workers: int) -> bool:
        """Every worker contributes to every round."""
        del workers
        return True

    @property
    def shards(self) -> int:
        """Every server holds all parameters."""
        return 1

    def count_servers(self, workers: int) -> int:
        """One server for each island, and the outer server."""
        return self._count(workers) + 1

    def shared_by(self, workers: int) -> range:
        """The outer server holds the shared parameters."""
        return range(self._count(workers), self._count(workers) + 1)

    def members(self, island: int, workers: int) -> range:
        """The ranks of an island's workers."""
        return range(workers)[part(workers, island, self._count(workers))]

    def groups(self, workers: int) -> tuple[WorkerGroup, ...]:
        """One group for every island with its server, and one for the outer server."""
        islands = range(self._count(workers))
        own = [(self.members(island, workers), range(island, island + 1)) for island in islands]
        return (*own, (range(0), self.shared_by(workers)))

    def _count(self, workers: int) -> int:
        return min(self._islands, workers)

    def on_islands(self, sizes: tuple[int, ...]) -> Hierarchical:
        """With as many islands as there are sizes, unless their number was given.

        Raises:
            ValueError: workers that are divided evenly would not be divided as the cluster is.
        """
        if self.islands is not None or not sizes:
            return self
        fitted, total = replace(self, islands=len(sizes)), sum(sizes)
        if tuple(len(fitted.members(island, total)) for island in range(len(sizes))) != sizes:
            raise ValueError(
                f"{self} divides workers evenly, and the cluster has sites or hosts of "
                f"{', '.join(map(str, sizes))} workers: give the number of islands, as in islands=2"
            )
        return fitted

    def coding_of(self, server: int, workers: int) -> Coding | None:
        """The inner strategy's codecs on an island's server, the outer one's on the outer."""
        if server < self._count(workers):
            return self._inner.coding("updates")
        assert isinstance(self.outer, Compressed)
        return self.outer.coding("updates" if self._sums else "replicas")

    def step_payload(self, workers: int, size: int) -> StepPayload:
        """2·m with the island's server in every step.

        In an outer round one worker of every island exchanges another 2·m with the outer server,
        and 2·m with its island's, to which it brings the result.
        """
        return step_payload(self._inner, self.outer, self._count(workers), workers, size)

    def _names(self, replica: Replica) -> tuple[str, str]:
        """The names of the worker's island server and of the outer server."""
        count, workers = self._count(replica.terms.workers), replica.terms.workers
        own = next(i for i in range(count) if replica.rank in self.members(i, workers))
        return replica.servers[own], replica.servers[count]

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """Step with the island, and carry its parameters to the outer server when asked to."""
        kind = OuterExchange if self._sums else InnerWorker
        await kind(replica, endpoint, *self._names(replica)).work()

    async def refresh(self, replica: Replica, endpoint: Endpoint) -> list[int]:
        """Read the outer server's parameters, without taking part in its rounds."""
        outer = self._names(replica)[1]
        endpoint.post(outer, Pull(looks=True), into=replica.parameters(0))
        return [(await answer(endpoint, outer)).version]

    def begin(self, terms: Terms) -> ServerState:
        """An island's server waits for its workers, the outer server for the islands."""
        islands = [self.members(one, terms.workers) for one in range(self._count(terms.workers))]
        if terms.number < len(islands):
            present = frozenset(f"worker-{rank}" for rank in islands[terms.number])
            kind = InnerSumRound if self._sums else Island
            return kind(replace(terms, workers=len(present)), present=present)
        return (begin_outer_sum if self._sums else begin_outer)(terms, islands)

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Handle a call on an island's server, or on the outer server."""
        match state:
            case InnerSumRound() | OuterSumRound():
                return _sum_of(state).on_message(state, call)
            case Island():
                return on_island(self._inner, self._outer, state, call)
        assert isinstance(state, OuterRound)
        return on_outer(self._outer, state, call)

    def early(self, state: ServerState, call: Call) -> int:
        """Islands sum in rank order, and the outer server sums in the order of islands."""
        if isinstance(state, InnerSumRound | OuterSumRound):
            return _sum_of(state).early(state, call)
        return early_in(self._inner, self._outer, state, call)

    def on_repeat(self, state: ServerState, call: Call) -> Answer:
        """Repeat the first answer, if it was an errand that has not been started yet."""
        match state:
            case InnerSumRound() | OuterSumRound():
                return _sum_of(state).on_repeat(state, call)
            case Island():
                return repeat_on_island(state, call)
        return super().on_repeat(state, call)

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """Stop waiting for the worker; if it was on an errand, send another worker."""
        match state:
            case InnerSumRound() | OuterSumRound():
                return _sum_of(state).on_leave(state, worker)
            case Island():
                return left_island(self._inner, self._outer, state, worker)
        assert isinstance(state, OuterRound)
        return left_outer(self._outer, state, worker)


_INNER_SUM, _OUTER_SUM = InnerSum(), OuterSum()


def _sum_of(state: InnerSumRound | OuterSumRound) -> Synchronous:
    return _INNER_SUM if isinstance(state, InnerSumRound) else _OUTER_SUM
