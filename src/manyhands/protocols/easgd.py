"""Elastic averaging: a spring between every worker and a centre."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.endpoint import Parameters, Pull, Push, Terms, Turn
from manyhands.protocols.actions import Action, Add, Answer, Call, Move
from manyhands.protocols.parts.elastic_strength import ElasticStrength, check_springs, springs
from manyhands.protocols.parts.pull_and_rest import answer, rest
from manyhands.protocols.parts.round_robin import Turns, next_turn
from manyhands.protocols.parts.rounds import Round, Rounds

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, LeasedBatch, Replica
    from manyhands.protocols.protocol import ServerState


@dataclass(frozen=True, repr=False)
class ElasticAveraging(Rounds):
    """Let every worker train by itself, held by a spring to a centre that follows them all.

    x_i ← x_i − η·∇f(x_i) − α·(x_i − x̄) and x̄ ← (1 − β)·x̄ + (β/N)·Σx_i, with α = η·ρ and β = N·α
    unless they are given. Workers may wander and explore; the centre is the model. All of it uses
    the values of the same moment: in parallel order everybody's at once, in asynchronous order one
    worker's whenever it comes, in round-robin order worker t mod N's.

    Use it where communication is dear and workers are many; with `every` > 1 the spring pulls only
    once in so many steps. It costs 2·m bytes per worker and pull.

    Example: `easgd(order=asynchronous)`

    Paper: Zhang, Choromanska, LeCun, Deep Learning with Elastic Averaging SGD, NIPS 2015.
    """

    name: ClassVar[str] = "easgd"
    support: ClassVar[Literal["beta"]] = "beta"
    local_optimizer: ClassVar[bool] = True
    own_parameters: ClassVar[bool] = True

    rho: float | None = None
    """ρ: the strength of the springs. By default such that N·η·ρ = 0.9, as the paper has it."""
    order: Literal["parallel", "asynchronous", "round_robin"] = "parallel"
    """Who meets the centre when: all together, each when it comes, or one after the other."""
    every: int = 1
    """Steps of each worker between two meetings with the centre."""
    servers: int = 1
    """How many processes hold the centre, an equal part each."""
    alpha: float | None = None
    """α: how far a worker moves towards the centre; η·ρ by default."""
    beta: float | None = None
    """β: how far the centre moves towards the mean of all workers; N·α by default, so that what a
    worker loses the centre gains."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 1:
            raise ValueError(f"every must be 1 or more, not {self.every}")
        check_springs(self.rho, self.alpha, self.beta)

    @property
    def lockstep(self) -> bool:
        """In every order but the asynchronous one somebody waits for somebody."""
        return self.order != "asynchronous"

    def springs(self, terms: Terms) -> ElasticStrength:
        """How far a worker and the centre move towards each other."""
        return springs(self.rho, self.alpha, self.beta, terms)

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """Step alone, and be pulled towards the centre in every so many steps."""
        await self.refresh(replica, endpoint)
        await self._look(replica, endpoint)
        meet = {
            "parallel": self._meet_together,
            "asynchronous": self._meet_alone,
            "round_robin": self._meet_in_turn,
        }[self.order]
        steps, rested = 0, False
        async for batch in replica.batches():
            if batch is None:
                await rest(replica, endpoint)
                rested = True
                continue
            if rested:
                await self._look(replica, endpoint)
                rested = False
            steps += 1
            if steps % self.every == 0:
                await meet(replica, endpoint, batch)
            else:
                await replica.gradient(batch)
                replica.apply(batch)
            replica.commit(batch)

    async def _look(self, replica: Replica, endpoint: Endpoint) -> None:
        """Have the centre lie beside the parameters."""
        for server, name in enumerate(replica.servers):
            endpoint.post(name, Pull(), into=replica.beside(server))
        for name in replica.servers:
            await answer(endpoint, name)

    async def _meet_together(
        self, replica: Replica, endpoint: Endpoint, batch: LeasedBatch
    ) -> None:
        """x_i(t+1) = x_i(t) − η·∇f(x_i(t)) − α·(x_i(t) − x̄(t)); x̄(t) is known from last time."""
        await replica.gradient(batch)
        replica.trade(self.springs(replica.terms).worker)
        for server, name in enumerate(replica.servers):
            beside = replica.beside(server)
            endpoint.post(name, Push(0, batch.samples), payload=beside, into=beside)
        replica.apply(batch)
        for name in replica.servers:
            await answer(endpoint, name)

    async def _meet_alone(self, replica: Replica, endpoint: Endpoint, batch: LeasedBatch) -> None:
        """X ← x_i; x_i ← x_i − α·(x − x̄); x̄ ← x̄ + α·(x − x̄); x_i ← x_i − η·∇f(x)."""
        for server in range(len(replica.servers)):
            self._give(replica, endpoint, server, batch)
        await replica.gradient(batch)
        for name in replica.servers:
            await answer(endpoint, name)
        replica.draw(self.springs(replica.terms).worker)
        replica.apply(batch)

    async def _meet_in_turn(self, replica: Replica, endpoint: Endpoint, batch: LeasedBatch) -> None:
        """The same, when it is this worker's turn.

        The first server gives turns, and its part is met last, which ends the turn. If all of them
        gave turns, two workers might each have one and wait for the other's.
        """
        first, *others = replica.servers
        endpoint.post(first, Turn())
        await answer(endpoint, first)
        for server in range(1, len(replica.servers)):
            self._give(replica, endpoint, server, batch)
        for name in others:
            await answer(endpoint, name)
        self._give(replica, endpoint, 0, batch)
        await replica.gradient(batch)
        await answer(endpoint, first)
        replica.draw(self.springs(replica.terms).worker)
        replica.apply(batch)

    def _give(self, replica: Replica, endpoint: Endpoint, server: int, batch: LeasedBatch) -> None:
        """Show a server where this worker is, and have its centre lie beside."""
        payload, into = replica.parameters(server), replica.beside(server)
        endpoint.post(replica.servers[server], Push(0, batch.samples), payload=payload, into=into)

    def begin(self, terms: Terms) -> Turns:
        """All workers take part, and the first one has the first turn."""
        return Turns(terms, present=super().begin(terms).present)

    def in_order(self, terms: Terms) -> bool:
        """Only if they meet together: turns go by ranks anyway."""
        del terms
        return self.order == "parallel"

    def gather(self, state: Round, call: Call, share: float) -> list[Action]:
        """Every worker's spring is as strong."""
        del state, share
        return [Add(call, 1.0)]

    def conclude(self, state: Round) -> list[Action]:
        """x̄ ← x̄ + (β/N)·Σ(x_i − x̄)."""
        givers = len(state.waiting) + len(state.gone)
        return [Move(by=givers * self.springs(state.terms).centre, over=givers)]

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """All together, or one at a time: then the centre is answered as the worker met it."""
        assert isinstance(state, Turns)
        match call.message:
            case Push() if self.order != "parallel":
                now = replace(state, version=state.version + 1, busy=None)
                meeting: list[Action] = [
                    Add(call, 1.0),
                    Answer(call, Parameters(now.version)),
                    Move(by=self.springs(state.terms).centre, over=1.0),
                ]
                return next_turn(now, meeting)
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
        """Its turn is the next one's."""
        after, actions = super().on_leave(state, worker)
        assert isinstance(after, Turns)
        asking = after.asking.without(worker)
        busy = None if after.busy == worker else after.busy
        return next_turn(replace(after, asking=asking, busy=busy), actions)
