"""Ensemble: replicas that are trained independently, and whose predictions are averaged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.costs import StepPayload
from manyhands.endpoint import Parameters, Pull, Push
from manyhands.protocols.actions import Action, Add, Answer, Call, Move
from manyhands.protocols.parts.pull_and_rest import answer
from manyhands.protocols.parts.shares import AT_OWN_PACE
from manyhands.protocols.protocol import ServerState, StrategyProtocol

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, Replica
    from manyhands.job import Job


@dataclass(frozen=True, repr=False)
class Ensemble(StrategyProtocol):
    """Train every worker's replica independently, and average their predictions.

    y(x) = (1/N)·Σ f(x; W_n). Replicas start from different initial parameters and see different
    samples, so their errors differ, and the mean of their outputs is usually better than each of
    them.

    Use it if workers cannot communicate, or if the better prediction is worth N models. Training
    needs no communication at all; each replica is trained on 1/N of the samples.

    Example: `ensemble()`

    Paper: Hansen, Salamon, Neural Network Ensembles, IEEE PAMI 1990.
    """

    name: ClassVar[str] = "ensemble"
    support: ClassVar[Literal["experimental"]] = "experimental"
    lacks: ClassVar[dict[str, str]] = {
        "codec": "replicas are sent only to be evaluated",
        "shares": AT_OWN_PACE,
    }
    local_optimizer: ClassVar[bool] = True
    own_parameters: ClassVar[bool] = True
    peer_servers: ClassVar[bool] = True
    ensemble: ClassVar[bool] = True
    servers = 1

    def check_job(self, job: Job, workers: int) -> None:
        """Raise ValueError for an objective: it has no outputs to average."""
        super().check_job(job, workers)
        if job.objective is not None:
            raise ValueError(
                f"{self} averages the outputs of its replicas, and an objective has none: give "
                "loss=loss(outputs, targets) and pairs (input, target)"
            )

    def step_payload(self, workers: int, size: int) -> StepPayload:
        """Nothing: replicas are exchanged only in evaluations."""
        del workers, size
        return StepPayload(between_workers=True)

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """Take local steps only."""
        own = replica.servers[replica.rank]
        endpoint.post(own, Pull(), into=replica.parameters(0))
        await answer(endpoint, own)
        async for batch in replica.batches():
            if batch is not None:
                await replica.gradient(batch)
                replica.apply(batch)
                replica.commit(batch)

    async def refresh(self, replica: Replica, endpoint: Endpoint) -> list[int]:
        """Publish the replica on the worker's own server, for evaluation by other workers."""
        own = replica.servers[replica.rank]
        endpoint.post(own, Push(0, 1), payload=replica.parameters(0), into=replica.beside(0))
        return [(await answer(endpoint, own)).version]

    async def stand_by(self, replica: Replica, endpoint: Endpoint) -> None:
        """Publish the replica as well: the evaluating workers need it."""
        await self.refresh(replica, endpoint)

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Hold the replica that the worker published."""
        match call.message:
            case Push():
                now = replace(state, version=state.version + 1)
                return now, [Add(call, 1.0), Move(1.0, 1.0), Answer(call, Parameters(now.version))]
            case Pull():
                return state, [Answer(call, Parameters(state.version))]
            case _:
                return state, []
