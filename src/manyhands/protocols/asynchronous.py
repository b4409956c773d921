"""Asynchronous SGD on parameter servers: every update is applied as soon as it arrives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.endpoint import Parameters, Pull, Push
from manyhands.protocols.protocol import Action, Answer, Call, ServerState, Step, StrategyProtocol

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, Replica


@dataclass(frozen=True, repr=False)
class Asynchronous(StrategyProtocol):
    """Apply every worker's update as soon as it arrives (asynchronous SGD).

    W ← W − λ·(b/B)·ΔW(W_then): a worker pulls the parameters, computes the gradient of its b
    samples, pushes it and pulls again, waiting for nobody. Others have pushed in between, so the
    update was computed from older parameters than it is applied to: with N workers it is N − 1
    versions stale on average. Each push is one step of the user's optimizer on the servers, and
    counts for b/B of a step of the global batch B.

    Use it when workers are unequal or come and go: nobody waits for the slowest. It costs 2·m
    bytes per worker and update for m bytes of parameters, and staleness, which grows with the
    workers.

    A server applies one update at a time, whole, which is what "asynchronous with a lock" means;
    `locked` is another name for this strategy.

    Example: `asynchronous(servers=2)`

    Paper: Dean et al., Large Scale Distributed Deep Networks, NIPS 2012 (Downpour SGD).
    """

    name: ClassVar[str] = "asynchronous"
    support: ClassVar[Literal["beta"]] = "beta"

    servers: int = 1
    """How many processes hold the parameters, an equal part each. More of them share the traffic
    and the optimizer's work."""

    def __post_init__(self) -> None:
        if not 1 <= self.servers <= 1024:
            raise ValueError(f"servers must be between 1 and 1024, not {self.servers}")

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """Pull; then, for every batch: compute, push, pull."""
        read = await self.refresh(replica, endpoint)
        async for batch in replica.batches():

            def push(server: int, samples: int = batch.samples) -> None:
                endpoint.post(
                    replica.servers[server],
                    Push(read[server], samples),
                    payload=replica.update(server),
                    into=replica.parameters(server),
                )

            await replica.gradient(batch, ready=push)
            for server, name in enumerate(replica.servers):
                read[server] = await _parameters(endpoint, name)
            replica.commit(batch)

    async def refresh(self, replica: Replica, endpoint: Endpoint) -> list[int]:
        """Pull from every server."""
        for server, name in enumerate(replica.servers):
            endpoint.post(name, Pull(), into=replica.parameters(server))
        return [await _parameters(endpoint, name) for name in replica.servers]

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Step with what was pushed, answer with what is there now."""
        match call.message:
            case Push(version=read, samples=samples):
                weight = samples / state.terms.global_batch
                now = replace(state, version=state.version + 1)
                blend = 1 / state.terms.workers
                step = Step(call, weight, staleness=state.version - read, blend=blend)
                return now, [step, Answer(call, Parameters(now.version))]
            case Pull():
                return state, [Answer(call, Parameters(state.version))]
            case _:
                return state, []


async def _parameters(endpoint: Endpoint, server: str) -> int:
    """Receive a server's parameters; their version."""
    answer = await endpoint.receive(server)
    if not isinstance(answer, Parameters):
        raise TypeError(f"{server} answered with {type(answer).__name__}, not with parameters")
    return answer.version
