"""Push-sum: gossip along one-way links, with a mass (weight) for every replica."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.codecs import Codec  # noqa: TC001 - the notation reads the types of fields
from manyhands.costs import StepPayload
from manyhands.endpoint import Arrived, Change, MembershipChanged, Parameters, Pull, Push
from manyhands.failure import StateLost
from manyhands.protocols.actions import Action, Answer, Call, Scale, Shift
from manyhands.protocols.compression.coding import HEAD, Coding
from manyhands.protocols.gossip.shares import PushSumState, forget, give, give_again, split
from manyhands.protocols.gossip.topologies import ONE_WAY
from manyhands.protocols.parts.pull_and_rest import answer, take_mean
from manyhands.protocols.parts.shares import ALIKE
from manyhands.protocols.parts.successor import ask_another
from manyhands.protocols.protocol import ServerState, StrategyProtocol

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, LeasedBatch, Replica, Terms


@dataclass(frozen=True, repr=False)
class PushSum(StrategyProtocol):
    """Send half of the parameters and of their weight to a neighbour, along one-way links.

    Worker i has x_i and a mass w_i, and computes on z_i = x_i / w_i. In every step x_i ← x_i −
    w_i·η·∇f(z_i); then it keeps half of (x_i, w_i) and sends the other half to a neighbour, and
    adds what it receives to its own. No worker waits. Σx and Σw, including messages in flight, are
    not changed by that, so every z_i tends to Σx / Σw, the mean, although links are one-way.
    (In the paper workers wait for each other, so w_i stays near 1, and the step has no w_i. Here a
    fast worker sends away much of its mass, and would step too far without w_i. It keeps at least
    1/64: with less than twice that it steps, but does not send until it has received.)

    The mass of a lost worker is lost. Each of the others then continues from its z with a mass of
    1, so that the masses add up to the number of workers again.

    A worker i that returns begins with x_i = 0 and w_i = 0, and asks worker j for half of (x_j,
    w_j): x_i = x_j ← x_j / 2, w_i = w_j ← w_j / 2. So z_i = z_j, and its return changes neither Σx
    nor Σw, nor the mean. If j would keep less than 1/64, it gives nothing, and the next one is
    asked. If none can give, i begins with another's z and a mass of 1, as all do after a loss: then
    the mean over N workers moves by (z_i − mean) / (Σw + 1), and there is mass to send again. If
    the run ends meanwhile, what i was given is lost with it.

    Use it instead of `gossip` if links are one-way or asymmetric (behind a firewall, uplinks
    slower than downlinks): a worker sends m bytes per step, and receives m; a half or a quarter of
    it under `half()` or `int8()`.

    Example: `push_sum(graph=exponential)`

    Papers: Assran, Loizou, Ballas, Rabbat, Stochastic Gradient Push for Distributed Deep Learning,
    ICML 2019; Kempe, Dobra, Gehrke, Gossip-Based Computation of Aggregate Information, FOCS 2003.
    """

    name: ClassVar[str] = "push_sum"
    support: ClassVar[Literal["experimental"]] = "experimental"
    lacks: ClassVar[dict[str, str]] = {"shares": ALIKE}
    local_optimizer: ClassVar[bool] = True
    own_parameters: ClassVar[bool] = True
    peer_servers: ClassVar[bool] = True
    peers_return: ClassVar[bool] = True
    servers = 1

    graph: Literal["ring", "exponential"] = "exponential"
    """The receiver: the next rank on a ring; or in turn the ranks 1, 2, 4, … further."""
    codec: Codec | None = field(default=None, kw_only=True)
    """How the halves are encoded: half(), bfloat16(), int8(), int4() or a lossless one. What is not
    sent is added to the next half for the same neighbour, so Σx is kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        codec = self.codec
        if codec is not None and not (codec.bounded_error or codec.lossless):
            raise ValueError(
                f"a vector is sent with its whole weight, and {codec} sends only a part of the "
                "vector, which would not fit the weight: use half(), bfloat16(), int8() or int4(), "
                "or gossip()"
            )

    def coding_of(self, server: int, workers: int) -> Coding | None:
        """Halves are encoded with error feedback, so that nothing of Σx is lost."""
        del server, workers
        if self.codec is None:
            return None
        unbiased = self.codec.feedback == "if_biased" and not self.codec.lossless
        codec = replace(self.codec, feedback=True) if unbiased else self.codec
        return Coding(codec, None, "updates")

    def step_payload(self, workers: int, size: int) -> StepPayload:
        """A worker sends half of x, and receives as much on average.

        Skipped transfers are not considered: about one in a hundred at equal speeds. Under a codec
        the parameters are taken to be float32 without buffers.
        """
        half = size if self.codec is None else HEAD + self.codec.wire_bytes(round(size / 4))
        given = half if workers > 1 else 0
        return StepPayload(sent=given, received=given, between_workers=True)

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """For every batch: compute at z, update x, and send half of it to a neighbour."""
        own = replica.servers[replica.rank]
        if replica.returns:
            await self._start_from_another(replica, endpoint)
        gifts = 0
        async for batch in replica.batches():
            if batch is None:
                continue
            read, mass = await self._read(replica, endpoint, own)
            await replica.gradient(batch)
            replica.lay_aside()
            replica.apply(batch)
            replica.compare(mass)
            gifts += await self._send_half(replica, endpoint, batch, read, gifts)
            replica.commit(batch)

    async def _read(self, replica: Replica, endpoint: Endpoint, whose: str) -> tuple[int, float]:
        """Read z = x / w from a worker's server; return the version of x, and w."""
        endpoint.post(whose, Pull(), into=replica.parameters(0))
        said = await answer(endpoint, whose)
        replica.scale(1 / said.mass)
        return said.version, said.mass

    async def _send_half(
        self, replica: Replica, endpoint: Endpoint, batch: LeasedBatch, read: int, number: int
    ) -> bool:
        """Add the step to x, and send half of (x, w) to a neighbour; return if it had its turn.

        If the neighbour is lost meanwhile, the half is added back. A transfer that is skipped for
        want of mass does not advance to the next neighbour; one to a lost worker does.
        """
        own, workers = replica.servers[replica.rank], replica.terms.workers
        to = [replica.servers[rank] for rank in ONE_WAY[self.graph](replica.rank, workers, number)]
        there = [name for name in to if endpoint.reaches(name)]
        update, half = replica.update(0), replica.parameters(0)
        endpoint.post(own, Change(read, share=0.5 if there else 0.0), payload=update, into=half)
        said = await answer(endpoint, own)
        # The half is no longer on its own server: if the neighbour is lost it is added there again,
        # or its mass would be missing in the sum of all.
        for name in (*there, own) if said.mass else ():
            endpoint.post(name, Push(0, batch.samples, mass=said.mass), payload=half)
            try:
                await answer(endpoint, name)
            except MembershipChanged:
                continue
            break
        return bool(said.mass) or not there

    async def _start_from_another(self, replica: Replica, endpoint: Endpoint) -> None:
        """Replace a returning worker's initial (x, w) by half of another worker's."""
        own = replica.servers[replica.rank]
        endpoint.post(own, Pull(), into=replica.beside(0))
        first = (await answer(endpoint, own)).mass
        mass = await self._receive_half(replica, endpoint)
        if not mass:
            found, mass = await ask_another(replica, endpoint, Pull()), 1.0
            if found is None:
                raise StateLost
            replica.scale(1 / found[1].mass)
        # What is added is the difference, to x and to w.
        replica.compare(1.0)
        endpoint.post(own, Push(0, 0, mass=mass - first), payload=replica.update(0))
        await answer(endpoint, own)

    async def _receive_half(self, replica: Replica, endpoint: Endpoint) -> float:
        """Receive half of another worker's x; returns its mass, 0 if no worker can give any."""
        asked: list[str] = []
        while found := await ask_another(replica, endpoint, Pull(share=0.5), asked):
            other, said = found
            if said.mass:
                # Only now: until it is confirmed the other worker keeps the half, to answer a
                # repeated request with the same one.
                endpoint.post(other, Arrived())
                with suppress(MembershipChanged):
                    await answer(endpoint, other)
                return said.mass
            asked.append(other)
        return 0.0

    async def refresh(self, replica: Replica, endpoint: Endpoint) -> list[int]:
        """Load Σx / Σw over all reachable workers."""
        answers = await take_mean(replica, endpoint)
        replica.scale(len(answers) / sum(said.mass for said in answers))
        return [said.version for said in answers]

    def begin(self, terms: Terms) -> PushSumState:
        """All workers have the mass 1."""
        return PushSumState(terms)

    def mass(self, state: ServerState) -> float:
        """The mass of the replica on this server."""
        assert isinstance(state, PushSumState)
        return state.mass

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Add received parameters and mass; split off the half that is to be sent."""
        assert isinstance(state, PushSumState)
        match call.message:
            case Change(version=read, share=share):
                return split(state, call, read, share)
            case Push() if call.refused:
                # Its mass is lost with it, as that of a lost worker.
                done = Answer(call, Parameters(state.version), parameters=False)
                return state, [done]
            case Push(mass=mass):
                now = replace(state, version=state.version + 1, mass=state.mass + mass)
                return now, [Shift(call), Answer(call, Parameters(now.version), parameters=False)]
            case Pull(share=0.0):
                return state, [Answer(call, Parameters(state.version, mass=state.mass))]
            case _:
                return give(state, call)

    def on_repeat(self, state: ServerState, call: Call) -> Answer:
        """Answer with the current parameters and mass; what was given is given once."""
        assert isinstance(state, PushSumState)
        if isinstance(call.message, Pull) and call.message.share:
            return give_again(state, call)
        return Answer(call, Parameters(state.version, mass=state.mass), parameters=call.room)

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """Reset the mass to 1 with the same z, because the lost worker's mass is lost.

        The remaining mass could otherwise be too little for any worker to send.
        """
        assert isinstance(state, PushSumState)
        left = forget(state, worker)
        if state.mass == 1.0:
            return left, []
        return replace(left, version=state.version + 1, mass=1.0), [Scale(1 / state.mass)]
