"""Elastic averaging SGD: an elastic force between every worker's replica and a centre."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.costs import StepPayload
from manyhands.endpoint import Parameters, Pull, Push, Terms, Turn
from manyhands.protocols.actions import Action, Add, Answer, Call, Move
from manyhands.protocols.compression.coding import Compressed
from manyhands.protocols.parts.elastic_strength import (
    ElasticStrength,
    check_strength,
    elastic_strength,
)
from manyhands.protocols.parts.pull_and_rest import answer, rest
from manyhands.protocols.parts.round_robin import RoundRobin, next_turn
from manyhands.protocols.parts.rounds import Round, Rounds
from manyhands.protocols.parts.shares import ALIKE

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, LeasedBatch, Replica
    from manyhands.protocols.compression.coding import Coding
    from manyhands.protocols.protocol import ServerState


@dataclass(frozen=True, repr=False)
class ElasticAveraging(Rounds, Compressed):
    """Train every replica by itself, tied by an elastic force to a centre that follows their mean.

    x_i ← x_i − η·∇f(x_i) − α·(x_i − x̄) and x̄ ← (1 − β)·x̄ + (β/N)·Σx_i, with α = η·ρ and β = N·α
    unless they are given. Replicas may explore different regions; the centre x̄ is the model. Both
    equations use the values of the same moment: in parallel order those of all workers at once,
    in asynchronous order those of one worker whenever it calls, in round-robin order those of
    worker t mod N.

    Use it with many workers on slow networks; with `every` > 1 the elastic exchange happens once
    in `every` steps. In an exchange a worker sends m bytes and receives m.

    Example: `easgd(order=asynchronous)`

    Paper: Zhang, Choromanska, LeCun, Deep Learning with Elastic Averaging SGD, NIPS 2015.
    """

    name: ClassVar[str] = "easgd"
    support: ClassVar[Literal["beta"]] = "beta"
    lacks: ClassVar[dict[str, str]] = {"shares": ALIKE}
    local_optimizer: ClassVar[bool] = True
    own_parameters: ClassVar[bool] = True

    rho: float | None = None
    """ρ: the strength of the elastic force. By default such that N·η·ρ = 0.9, as in the paper."""
    order: Literal["parallel", "asynchronous", "round_robin"] = "parallel"
    """When workers exchange with the centre: all at once, each when it is ready, or in turn."""
    every: int = 1
    """Steps of each worker between two exchanges with the centre."""
    servers: int = 1
    """Number of server processes; each holds an equal shard of the centre."""
    alpha: float | None = None
    """α: how far a worker moves towards the centre; η·ρ by default."""
    beta: float | None = None
    """β: how far the centre moves towards the mean of all workers; N·α by default, so that the
    changes of a worker and of the centre cancel out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 1:
            raise ValueError(f"every must be 1 or more, got {self.every}")
        check_strength(self.rho, self.alpha, self.beta)

    @property
    def lockstep(self) -> bool:
        """In every order but the asynchronous one, workers wait for each other."""
        return self.order != "asynchronous"

    def strength(self, terms: Terms) -> ElasticStrength:
        """How far a worker and the centre move towards each other."""
        return elastic_strength(self.rho, self.alpha, self.beta, terms)

    def coding_of(self, server: int, workers: int) -> Coding | None:
        """Replicas develop on their own: the difference to what was sent before is sent."""
        del server, workers
        return self.coding("states")

    def step_payload(self, workers: int, size: int) -> StepPayload:
        """Every worker sends its parameters and receives the centre, once in `every` steps."""
        del workers
        sent, received = self.exchanged(size, self.servers)
        return StepPayload(sent=sent / self.every, received=received / self.every)

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """Take local steps, and exchange with the centre in every `every`-th step."""
        await self.refresh(replica, endpoint)
        await self._read_centre(replica, endpoint)
        exchange = {
            "parallel": self._exchange_together,
            "asynchronous": self._exchange_alone,
            "round_robin": self._exchange_in_turn,
        }[self.order]
        steps, rested = 0, False
        async for batch in replica.batches():
            if batch is None:
                await rest(replica, endpoint)
                rested = True
                continue
            if rested:
                await self._read_centre(replica, endpoint)
                rested = False
            steps += 1
            if steps % self.every == 0:
                await exchange(replica, endpoint, batch)
            else:
                await replica.gradient(batch)
                replica.apply(batch)
            replica.commit(batch)

    async def _read_centre(self, replica: Replica, endpoint: Endpoint) -> None:
        """Read the centre into the replica's second buffer."""
        for server, name in enumerate(replica.servers):
            endpoint.post(name, Pull(), into=replica.beside(server))
        for name in replica.servers:
            await answer(endpoint, name)

    async def _exchange_together(
        self, replica: Replica, endpoint: Endpoint, batch: LeasedBatch
    ) -> None:
        """x_i(t+1) = x_i(t) − η·∇f(x_i(t)) − α·(x_i(t) − x̄(t)); x̄(t) was the last answer."""
        await replica.gradient(batch)
        replica.trade(self.strength(replica.terms).worker)
        for server, name in enumerate(replica.servers):
            beside = replica.beside(server)
            endpoint.post(name, Push(0, batch.samples), payload=beside, into=beside)
        replica.apply(batch)
        applied = [(await answer(endpoint, name)).applied for name in replica.servers]
        self._begin_anew(replica, applied)

    def _begin_anew(self, replica: Replica, applied: list[bool]) -> None:
        """Continue from the centre, if the replica was not finite and had no effect on it."""
        if not all(applied):
            replica.draw(1.0)

    async def _exchange_alone(
        self, replica: Replica, endpoint: Endpoint, batch: LeasedBatch
    ) -> None:
        """X ← x_i; x_i ← x_i − α·(x − x̄); x̄ ← x̄ + α·(x − x̄); x_i ← x_i − η·∇f(x)."""
        for server in range(len(replica.servers)):
            self._push_to(replica, endpoint, server, batch)
        await replica.gradient(batch)
        applied = [(await answer(endpoint, name)).applied for name in replica.servers]
        replica.draw(self.strength(replica.terms).worker)
        self._begin_anew(replica, applied)
        replica.apply(batch)

    async def _exchange_in_turn(
        self, replica: Replica, endpoint: Endpoint, batch: LeasedBatch
    ) -> None:
        """As `_exchange_alone`, when it is this worker's turn.

        The first server grants turns; the exchange with its shard comes last and ends the turn.
        If every server granted turns, two workers could each hold one and wait for the other's.
        """
        first, *others = replica.servers
        endpoint.post(first, Turn())
        await answer(endpoint, first)
        for server in range(1, len(replica.servers)):
            self._push_to(replica, endpoint, server, batch)
        applied = [(await answer(endpoint, name)).applied for name in others]
        self._push_to(replica, endpoint, 0, batch)
        await replica.gradient(batch)
        applied.append((await answer(endpoint, first)).applied)
        replica.draw(self.strength(replica.terms).worker)
        self._begin_anew(replica, applied)
        replica.apply(batch)

    def _push_to(
        self, replica: Replica, endpoint: Endpoint, server: int, batch: LeasedBatch
    ) -> None:
        """Send this worker's parameters to a server, and receive its centre beside them."""
        payload, into = replica.parameters(server), replica.beside(server)
        endpoint.post(replica.servers[server], Push(0, batch.samples), payload=payload, into=into)

    def begin(self, terms: Terms) -> RoundRobin:
        """All workers take part, and worker 0 has the first turn."""
        return RoundRobin(terms, present=super().begin(terms).present)

    def in_order(self, terms: Terms) -> bool:
        """Whether sums are computed in rank order: in parallel order only (turns go by rank)."""
        del terms
        return self.order == "parallel"

    def gather(self, state: Round, call: Call, share: float) -> list[Action]:
        """All workers have the same weight."""
        del state, share
        return [Add(call, 1.0)]

    def conclude(self, state: Round) -> list[Action]:
        """x̄ ← x̄ + (β/N)·Σ(x_i − x̄)."""
        givers = len(state.waiting) + len(state.gone)
        return [Move(by=givers * self.strength(state.terms).centre, over=givers)]

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Gather a round, or handle one worker: it receives the centre from before its own pull."""
        assert isinstance(state, RoundRobin)
        match call.message:
            case Push() if self.order != "parallel":
                now = replace(state, version=state.version + 1, busy=None)
                actions: list[Action] = [
                    Add(call, 1.0),
                    Answer(call, Parameters(now.version)),
                    Move(by=self.strength(state.terms).centre, over=1.0),
                ]
                return next_turn(now, actions)
            case Turn():
                asking = state.asking.put(call.worker, call)
                known = call.worker in state.present
                present = state.present if known else state.present | {call.worker}
                return next_turn(replace(state, asking=asking, present=present), [])
            case _:
                after, actions = super().on_message(state, call)
                return (
                    next_turn(after, actions) if self.order == "round_robin" else (after, actions)
                )

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """Pass the turn of a lost worker on to the next one."""
        after, actions = super().on_leave(state, worker)
        assert isinstance(after, RoundRobin)
        asking = after.asking.without(worker)
        busy = None if after.busy == worker else after.busy
        return next_turn(replace(after, asking=asking, busy=busy), actions)
