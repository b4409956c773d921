"""Push-sum: gossip along one-way links, which keeps count of how much each replica weighs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.endpoint import Change, MembershipChanged, Parameters, Pull, Push
from manyhands.protocols.actions import Action, Answer, Call, Scale, Shift
from manyhands.protocols.gossip.topologies import ONE_WAY
from manyhands.protocols.parts.pull_and_rest import answer, take_mean
from manyhands.protocols.protocol import ServerState, StrategyProtocol

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, LeasedBatch, Replica, Terms


LEAST = 1 / 64
"""A worker gives nothing away that would leave it with less mass than this. At equal speeds one
gift in a hundred is put off; without a limit, a worker whose givers are slow would halve its mass
until 1 / w overflows."""


@dataclass(frozen=True)
class Massive(ServerState):
    """One worker's x, with the mass that belongs to it."""

    mass: float = 1.0


@dataclass(frozen=True, repr=False)
class PushSum(StrategyProtocol):
    """Give half of what one has to a neighbour, who need not give anything back.

    Worker i has x_i and a mass w_i, and computes on z_i = x_i / w_i. In every step x_i ← x_i −
    w_i·η·∇f(z_i); then it keeps half of (x_i, w_i) and sends the other half on, and whatever others
    sent is added to its own. Nobody waits for anybody. Σx and Σw never change by that, what is on
    its way included, so every z_i tends to their quotient, the mean, although the links go one way.
    (The paper's workers wait for each other, so w_i stays near 1, and its step has no w_i. Here a
    fast worker gives away much of its mass, and without w_i would step too far. It keeps at least
    1/64: with less than twice that it steps, but sends nothing until it has received something.)

    The mass of a worker that is lost is lost with it. Each of the others then continues from its z
    with a mass of 1, so that the masses add up to the number of workers again.

    Use it instead of `gossip` where links are one-way or unequal (behind a firewall, uplinks
    slower than downlinks): a worker sends m bytes per step, and receives m.

    Example: `push_sum(graph=exponential)`

    Papers: Assran, Loizou, Ballas, Rabbat, Stochastic Gradient Push for Distributed Deep Learning,
    ICML 2019; Kempe, Dobra, Gehrke, Gossip-Based Computation of Aggregate Information, FOCS 2003.
    """

    name: ClassVar[str] = "push_sum"
    support: ClassVar[Literal["experimental"]] = "experimental"
    local_optimizer: ClassVar[bool] = True
    own_parameters: ClassVar[bool] = True
    peer_servers: ClassVar[bool] = True
    servers = 1

    graph: Literal["ring", "exponential"] = "exponential"
    """To whom one sends: the next one; or in turn those 1, 2, 4, … further."""

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """Step at z, then give half away."""
        own = replica.servers[replica.rank]
        if replica.returns:
            await self._take_after(replica, endpoint)
        gifts = 0
        async for batch in replica.batches():
            if batch is None:
                continue
            read, mass = await self._look(replica, endpoint, own)
            await replica.gradient(batch)
            replica.lay_aside()
            replica.apply(batch)
            replica.compare(mass)
            gifts += await self._give(replica, endpoint, batch, read, gifts)
            replica.commit(batch)

    async def _look(self, replica: Replica, endpoint: Endpoint, whose: str) -> tuple[int, float]:
        """Have z = x / w of a worker; of which version it is, and w."""
        endpoint.post(whose, Pull(), into=replica.parameters(0))
        said = await answer(endpoint, whose)
        replica.scale(1 / said.mass)
        return said.version, said.mass

    async def _give(
        self, replica: Replica, endpoint: Endpoint, batch: LeasedBatch, read: int, number: int
    ) -> bool:
        """Change x by the step that was taken; and have a neighbour add half of it all to its own.

        If that one is gone meanwhile, what it was to have is taken back. Returns whether there was
        a gift: only gifts are counted, or those that are put off could skip a neighbour for ever.
        """
        own, workers = replica.servers[replica.rank], replica.terms.workers
        to = [replica.servers[rank] for rank in ONE_WAY[self.graph](replica.rank, workers, number)]
        there = [name for name in to if endpoint.reaches(name)]
        update, half = replica.update(0), replica.parameters(0)
        endpoint.post(own, Change(read, share=0.5 if there else 0.0), payload=update, into=half)
        said = await answer(endpoint, own)
        for name in (*there, own) if said.mass else ():
            endpoint.post(name, Push(0, batch.samples, mass=said.mass), payload=half)
            try:
                await answer(endpoint, name)
            except MembershipChanged:
                continue
            break
        return bool(said.mass)

    async def _take_after(self, replica: Replica, endpoint: Endpoint) -> None:
        """One who returns begins where another one is, and not at the beginning."""
        own = replica.servers[replica.rank]
        others = [name for name in replica.servers if name != own and endpoint.reaches(name)]
        endpoint.post(own, Pull(), into=replica.beside(0))
        await answer(endpoint, own)
        for other in others:
            try:
                await self._look(replica, endpoint, other)
            except MembershipChanged:
                continue
            replica.compare(1.0)
            endpoint.post(own, Push(0, 0), payload=replica.update(0))
            await answer(endpoint, own)
            return

    async def refresh(self, replica: Replica, endpoint: Endpoint) -> list[int]:
        """Σx / Σw over all that can be reached."""
        answers = await take_mean(replica, endpoint)
        replica.scale(len(answers) / sum(said.mass for said in answers))
        return [said.version for said in answers]

    def begin(self, terms: Terms) -> Massive:
        """Everybody weighs as much."""
        return Massive(terms)

    def mass(self, state: ServerState) -> float:
        """What the replica that is here weighs."""
        assert isinstance(state, Massive)
        return state.mass

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Add what comes; give away what is wanted."""
        assert isinstance(state, Massive)
        match call.message:
            case Change(version=read, share=share):
                if share * state.mass < LEAST:
                    share = 0.0
                given = share * state.mass
                now = replace(state, version=state.version + 1, mass=state.mass - given)
                # What is left is as much as what is given, so the same bytes serve as both.
                half: list[Action] = [Scale(1 - share)] if share else []
                said = Answer(call, Parameters(now.version, mass=given), parameters=bool(share))
                return now, [Shift(call, state.version - read), *half, said]
            case Push(mass=mass):
                now = replace(state, version=state.version + 1, mass=state.mass + mass)
                return now, [Shift(call), Answer(call, Parameters(now.version), parameters=False)]
            case Pull():
                return state, [Answer(call, Parameters(state.version, mass=state.mass))]
            case _:
                return state, []

    def on_repeat(self, state: ServerState, call: Call) -> Answer:
        """With what is there now."""
        assert isinstance(state, Massive)
        return Answer(call, Parameters(state.version, mass=state.mass), parameters=call.room)

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """Weigh 1 again, with the same z: some of the mass of all is lost with a worker.

        What is left might otherwise be too little for anybody to give.
        """
        assert isinstance(state, Massive)
        del worker
        if state.mass == 1.0:
            return state, []
        return replace(state, version=state.version + 1, mass=1.0), [Scale(1 / state.mass)]
