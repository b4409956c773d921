"""The contract of a placement: the real thing beside a pure forecast of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.notation import Value
from manyhands.runtime_needs import RuntimeNeeds

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import torch

    from manyhands.costs import Forecast, LayerSize, TensorSize
    from manyhands.job import Job
    from manyhands.placements.bound import Bound
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


def check_layers(placement: Placement, layers: Sequence[LayerSize], *roles: str) -> None:
    """Refuse to forecast without the layers that matter."""
    if not any(layer.role in roles for layer in layers):
        raise ValueError(
            f"{placement} exchanges what goes through layers that are {' or '.join(roles)}, and "
            "none is given: use forecast_job(job, workers)"
        )


@dataclass(frozen=True, repr=False)
class Placement(Value, ABC):
    """How copies or parts of one module are trained together by a group of workers.

    `bind` is what happens; `forecast` says it beforehand. A conformance test holds the two
    together, so a placement whose forecast is wrong does not pass.
    """

    support: ClassVar[Literal["stable", "beta", "experimental"]]
    needs_less: ClassVar[str] = (
        "more workers, a smaller global batch, or hybrid(shard=…, tensor=…) with more of both"
    )
    """What to use instead if a worker's memory does not suffice."""

    def unlike(self, workers: int) -> Sequence[int]:  # noqa: ARG002 - some need it
        """Workers that hold different things: every other one holds as much as one of these."""
        return (0,)

    def check(self, workers: int) -> None:
        """Raise ValueError, naming the fix, if this placement cannot serve so many workers."""
        if workers < 1:
            raise ValueError(f"a run needs at least 1 worker, not {workers}")

    def needs(self, workers: int) -> RuntimeNeeds:  # noqa: ARG002 - the contract
        """What the runtime has to provide."""
        return RuntimeNeeds(collectives=True, lockstep=True, by_rank=True)

    def check_places(self, hosts: Collection[str], devices: Collection[str]) -> None:
        """Raise ValueError, naming the fix, if workers on these hosts and devices cannot do it."""

    def check_job(self, job: Job, workers: int) -> None:
        """Raise ValueError, naming the fix, if it cannot train this job; no process has started."""

    @abstractmethod
    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """Make this worker's part of the job's model, to be trained with the group.

        The random source stands at the job's seed, so what all workers make is alike.
        """

    @abstractmethod
    def forecast(self, parameters: Sequence[TensorSize], workers: int) -> Forecast:
        """The collectives of one worker in order, with their bytes, and its memory.

        A placement that exchanges what goes through layers needs to be told of these as well.
        """

    def forecast_job(self, job: Job, workers: int) -> Forecast:
        """The same for a step with a whole batch, without making the model's parameters."""
        from manyhands.parameters.initial.deferred import on_meta  # noqa: PLC0415 - torch is lazy
        from manyhands.placements.tensor_sizes import sizes  # noqa: PLC0415

        return self.forecast(sizes(on_meta(job.model)), workers)
