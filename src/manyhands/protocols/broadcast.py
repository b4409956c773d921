"""Broadcast: every worker sends its updates to all others, which add them to their replicas."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from manyhands.codecs import Codec, Threshold
from manyhands.costs import StepPayload
from manyhands.endpoint import Change, MembershipChanged, Parameters, Pull, Push
from manyhands.protocols.actions import Action, Add, Answer, Call, Move, Shift
from manyhands.protocols.compression.coding import HEAD, Coding
from manyhands.protocols.parts.pull_and_rest import answer, take_mean
from manyhands.protocols.parts.shares import AT_OWN_PACE
from manyhands.protocols.parts.successor import copy_another
from manyhands.protocols.protocol import ServerState, StrategyProtocol

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, Replica
    from manyhands.runtime_needs import RuntimeNeeds

_DEFAULT: Final = Threshold(density=0.01)
_EARLY_EPOCHS: Final = 0.25


@dataclass(frozen=True, repr=False)
class Broadcast(StrategyProtocol):
    """Send every update to all other workers, in few bytes; there is no server.

    Worker i takes a step u_i with the samples of its part of a global batch: x_i ← x_i + u_i. It
    encodes u_i + r_i once and sends it to all others: x_j ← x_j + δ_i, where δ_i is what they
    decode. It keeps the residual r_i ← r_i + u_i − δ_i. Its own replica has u_i itself. So every
    replica is x_0 + Σ of its own updates + Σ of what was decoded from others: replicas differ by
    residuals and by what is under way. The mean of all replicas is the model.

    What is sent is the change that the local optimizer made, not the gradient: with plain SGD it is
    −η·∇f, as in the paper; with momentum or Adam the state stays with the worker that computed it,
    and the receiver only adds. (In the paper a worker also takes the decoded δ_i itself.) A worker
    continues when its update has arrived everywhere; it waits for no computation.

    What a lost worker has not sent is lost: its residual, and its last update at those workers that
    it had not reached. Its samples without a commit are leased again. A worker that returns starts
    from the replica of another, and has no residual; updates that others send until they know of it
    may be missing from its replica.

    Use it where many equal machines have slow links and no server: with a density of 0.01 a worker
    sends m/300 to each of the others in every step, and receives as much. Steps are added, not
    averaged, so a worker computes with parameters that lack up to N − 1 updates.

    Example: `broadcast(codec=threshold(density=0.01), early_workers=2)`

    Papers: Strom, Scalable Distributed DNN Training Using Commodity GPU Cloud Computing,
    Interspeech 2015; it is also the gradient sharing of Deeplearning4j.
    """

    name: ClassVar[str] = "broadcast"
    support: ClassVar[Literal["experimental"]] = "experimental"
    lacks: ClassVar[dict[str, str]] = {"shares": AT_OWN_PACE}
    local_optimizer: ClassVar[bool] = True
    own_parameters: ClassVar[bool] = True
    peer_servers: ClassVar[bool] = True
    peers_return: ClassVar[bool] = True
    servers = 1

    codec: Codec | None = _DEFAULT
    """How updates are encoded; none sends them whole."""
    early_workers: int = 0
    """Workers that begin, while the others only receive; 0 for all. At first gradients are large
    and alike, and the steps of N workers together overshoot."""
    early_epochs: float = _EARLY_EPOCHS
    """Epochs after which the others join them."""

    def __post_init__(self) -> None:
        if self.early_workers < 0:
            raise ValueError(f"early_workers must be 0 or more, got {self.early_workers}")
        if not self.early_epochs > 0:
            raise ValueError(f"early_epochs must be above 0, got {self.early_epochs}")
        if not self.early_workers and self.early_epochs != _EARLY_EPOCHS:
            raise ValueError(
                f"early_epochs={self.early_epochs} is how long some workers wait, and "
                "early_workers=0 lets all of them begin: leave it out, or give early_workers"
            )

    def needs(self, workers: int) -> RuntimeNeeds:
        """As of any protocol; some workers may begin before the others."""
        needs = super().needs(workers)
        if not 0 < self.early_workers < workers:
            return needs
        return replace(needs, early=(self.early_workers, self.early_epochs))

    def coding_of(self, server: int, workers: int) -> Coding | None:
        """Updates are encoded once for all workers; replicas are read whole."""
        del server, workers
        return None if self.codec is None else Coding(self.codec, None, "updates", shared=True)

    def step_payload(self, workers: int, size: int) -> StepPayload:
        """A worker sends its update to each of the others, and receives theirs.

        Under a codec without a fixed size it is the upper bound, for float32 without buffers.
        """
        update = size if self.codec is None else HEAD + self.codec.wire_bytes(round(size / 4))
        given = (workers - 1) * update
        return StepPayload(sent=given, received=given, between_workers=True)

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """For every batch: compute, send the update to all others, and add it to the replica."""
        own = replica.servers[replica.rank]
        endpoint.post(own, Pull(), into=replica.parameters(0))
        read, number = (await answer(endpoint, own)).version, 0
        if replica.returns:
            read = await self._start_from_another(replica, endpoint, read)
        async for batch in replica.batches():
            if batch is None:
                continue
            await replica.gradient(batch)
            replica.lay_aside()
            replica.apply(batch, batch.samples)
            replica.compare(1.0)
            number += 1
            message = Push(read, batch.samples, number=number)
            others = [name for name in replica.servers if name != own and endpoint.reaches(name)]
            for name in others:
                endpoint.post(name, message, payload=replica.update(0))
            read = await self._change(replica, endpoint, read)
            for name in others:
                with suppress(MembershipChanged):
                    await answer(endpoint, name)
            replica.commit(batch)

    async def _change(self, replica: Replica, endpoint: Endpoint, read: int) -> int:
        """Add the update to this worker's replica on its own server, to which others add theirs.

        One worker alone puts its parameters there: x + (x' − x) may differ from x' in the last bit.
        """
        own, parameters = replica.servers[replica.rank], replica.parameters(0)
        if replica.terms.workers == 1:
            endpoint.post(own, Push(read, 0), payload=parameters, into=parameters)
        else:
            endpoint.post(own, Change(read), payload=replica.update(0), into=parameters)
        return (await answer(endpoint, own)).version

    async def _start_from_another(self, replica: Replica, endpoint: Endpoint, read: int) -> int:
        """Start a returning worker from another worker's replica, and not from the beginning."""
        own, parameters = replica.servers[replica.rank], replica.parameters(0)
        await copy_another(replica, endpoint)
        endpoint.post(own, Push(read, 0), payload=parameters, into=parameters)
        return (await answer(endpoint, own)).version

    async def refresh(self, replica: Replica, endpoint: Endpoint) -> list[int]:
        """Load the mean of all reachable replicas."""
        return [said.version for said in await take_mean(replica, endpoint)]

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Add the updates of others and of the own worker to the replica, in order of arrival."""
        now = replace(state, version=state.version + 1)
        match call.message:
            case Push() if call.worker == f"worker-{state.terms.number}":
                return now, [Add(call, 1.0), Move(1.0, 1.0), Answer(call, Parameters(now.version))]
            case Push():
                return now, [Shift(call), Answer(call, Parameters(now.version), parameters=False)]
            case Change(version=read):
                shift = Shift(call, state.version - read)
                return now, [shift, Answer(call, Parameters(now.version))]
            case Pull():
                return state, [Answer(call, Parameters(state.version))]
            case _:
                return state, []
