"""Training on one worker without communication: the baseline of all other strategies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.costs import Forecast
from manyhands.placements.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from manyhands.costs import TensorSize
    from manyhands.job import Job
    from manyhands.placements.bound import Bound
    from manyhands.runtime_needs import RuntimeNeeds
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


@dataclass(frozen=True, repr=False)
class Single(Placement):
    """Train on one worker, without communication.

    W ← W − λ·ΔW, with ΔW the mean gradient of the global batch. It is the reference whose results
    the synchronous strategies reproduce, and the baseline of speedups.
    """

    name: ClassVar[str] = "single"
    obstacles: ClassVar[dict[str, str]] = {}
    gradient_norms: ClassVar[bool] = True
    alternates: ClassVar[bool] = True
    support: ClassVar[Literal["stable"]] = "stable"
    lacks: ClassVar[dict[str, str]] = {"codec": "nothing is sent, because there is one worker"}
    needs_less: ClassVar[str] = (
        "fully_sharded(), where each of N workers holds 1/N of the model, or zero(stage=1), "
        "where it holds 1/N of the optimizer's state"
    )

    def needs(self, workers: int) -> RuntimeNeeds:
        """One worker, and no servers."""
        return replace(super().needs(workers), only_one_worker=True, preloads=())

    def check(self, workers: int) -> None:
        """Raise ValueError unless there is exactly one worker."""
        if workers != 1:
            raise ValueError(
                f"single() trains on 1 worker, got {workers}: for {workers} workers use allreduce()"
            )

    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """The whole model, not wrapped."""
        from manyhands.placements.worker.whole_model import WholeModel  # noqa: PLC0415 - torch is lazy

        return WholeModel(job, group, device, waits, wrap=lambda module: module)

    def forecast(self, parameters: Sequence[TensorSize], workers: int) -> Forecast:
        """No collectives; memory for parameters and gradients."""
        self.check(workers)
        memory = sum(tensor.size * (2 if tensor.trained else 1) for tensor in parameters)
        return Forecast(start=(), step=(), memory=memory)
