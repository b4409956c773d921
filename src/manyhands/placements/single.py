"""One worker, no communication: what every other strategy is measured against."""

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

    W ← W − λ·ΔW, with ΔW the mean gradient of the global batch. It is the oracle that the
    synchronous strategies equal and the baseline that speedups are relative to.
    """

    name: ClassVar[str] = "single"
    support: ClassVar[Literal["stable"]] = "stable"
    needs_less: ClassVar[str] = (
        "fully_sharded(), under which each of N workers holds 1/N of the model, or zero(stage=1), "
        "under which it holds 1/N of the optimizer's state"
    )

    def needs(self, workers: int) -> RuntimeNeeds:
        """One worker, and nothing else."""
        return replace(super().needs(workers), only_one_worker=True)

    def check(self, workers: int) -> None:
        """One worker, neither more nor fewer."""
        if workers != 1:
            raise ValueError(
                f"single() trains on 1 worker, not {workers}; for {workers} workers use allreduce()"
            )

    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """The module as it is."""
        from manyhands.placements.worker.whole_model import WholeModel  # noqa: PLC0415 - torch is lazy

        return WholeModel(job, group, device, waits, wrap=lambda module: module)

    def forecast(self, parameters: Sequence[TensorSize], workers: int) -> Forecast:
        """No collective; parameters and the gradients of those that are trained."""
        self.check(workers)
        memory = sum(tensor.size * (2 if tensor.trained else 1) for tensor in parameters)
        return Forecast(start=(), step=(), memory=memory)
