"""The jobs behind the published curves that docs/studies reproduces on the virtual clock.

Each page there has its command. DOWNPOUR, with which the paper on elastic averaging compares, is
registered here as a protocol of its own.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh
from manyhands.protocols import Answer, Change, Parameters, ServerBased, Shift


@mh.register
@dataclass(frozen=True, repr=False)
class Downpour(ServerBased):
    """Take `every` local steps, add their sum to the server's parameters, and continue from there.

    x̃ ← x̃ + (x_i − x_start), x_i ← x̃. Nobody waits for anybody.

    Example: `downpour(every=4)`

    Paper: Dean et al., Large Scale Distributed Deep Networks, NeurIPS 2012, as in Zhang,
    Choromanska, LeCun, Deep Learning with Elastic Averaging SGD, NeurIPS 2015.
    """

    name: ClassVar[str] = "downpour"
    local_optimizer: ClassVar[bool] = True
    servers: ClassVar[int] = 1

    every: int = 1
    """τ: local steps of a worker between two exchanges."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every must be 1 or more, got {self.every}")

    @property
    def lockstep(self) -> bool:
        """Workers hold several batches, and hear when there are no more."""
        return True

    async def worker(self, replica, endpoint):
        """The algorithm of a worker."""
        await self.refresh(replica, endpoint)
        batches = []
        async for batch in replica.batches():
            if batch is not None:
                if not batches:
                    start = replica.parameter_vector(0).clone()
                await replica.gradient(batch)
                replica.apply(batch)
                batches.append(batch)
            if batches and (batch is None or len(batches) == self.every):
                change = replica.parameter_vector(0) - start
                message, into = Change(replica.versions[0]), replica.parameters(0)
                endpoint.post("server-0", message, change, into)
                replica.versions[0] = (await endpoint.receive("server-0")).version
                replica.commit(*batches)
                batches.clear()

    def on_message(self, state, call):
        """Add a change, and answer with the parameters."""
        match call.message:
            case Change(version=read):
                now = replace(state, version=state.version + 1)
                done = Answer(call, Parameters(now.version))
                return now, [Shift(call, state.version - read), done]
            case _:
                return state, [Answer(call, Parameters(state.version))]


def _mnist(lr: float, batch: int, samples: int) -> mh.Job:
    return mh.Job(
        model=lambda: mh.models.MLP(hidden=(64,)),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=lr),
        loss=F.cross_entropy,
        data=mh.data.mnist("train"),
        validation=mh.data.mnist("test"),
        metrics=["accuracy"],
        global_batch=batch,
        samples=samples,
        evaluate_every=mh.every(samples=4_000),
    )


mnist = _mnist(lr=0.05, batch=128, samples=40_000)
"""16 workers have 8 samples each: EASGD against DOWNPOUR, gossip with a straggler."""

rounds = _mnist(lr=0.1, batch=256, samples=60_000)
"""8 workers have 32 samples each: SSP over its staleness, soft-sync over S."""

text = mh.Job(
    model=lambda: mh.models.GPT(vocabulary=65, length=64, width=48, layers=2, heads=4),
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3),
    loss=F.cross_entropy,
    data=mh.data.tinyshakespeare("train", length=64),
    validation=mh.data.tinyshakespeare("test", length=64),
    global_batch=64,
    samples=25_600,
    evaluate_every=mh.every(samples=6_400),
    clip=1.0,
)
"""8 workers have 8 sequences each: DiLoCo over H."""
