"""Layers split among workers, in Megatron's way, on PyTorch's DTensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.placements.hybrid import Hybrid
from manyhands.placements.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from manyhands.costs import Forecast, LayerSize, TensorSize
    from manyhands.job import Job
    from manyhands.placements.bound import Bound
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


@dataclass(frozen=True, repr=False)
class Tensor(Placement):
    """Compute each layer by several workers side by side.

    Y = f(X·A)·B: worker n holds A_n, a part of the columns of A, and B_n, the same part of the
    rows of B, and computes f(X·A_n)·B_n; the sum over the workers is Y. In an attention the
    columns are those of query, key and value, and a part of them is some of the heads. The
    workers of one model are given the same samples; with more workers than ways there are several
    such models, trained on different samples.

    Use it when a layer's parameters or activations do not fit on one worker, and the workers are
    close: in each block an activation is summed over the workers twice on the way there and twice
    on the way back.

    Example: `tensor(ways=2)`

    Paper: Shoeybi et al., Megatron-LM: Training Multi-Billion Parameter Language Models Using
    Model Parallelism, 2019.
    """

    name: ClassVar[str] = "tensor"
    support: ClassVar[Literal["beta"]] = "beta"

    ways: int = 2
    """Workers that compute one layer."""
    plan: tuple[str, ...] = ()
    """Which layers are split, by hand: "*.mlp.up column", "*.mlp.down row". By default they are
    found: linear layers that lead to another through what can be computed on parts."""

    def __post_init__(self) -> None:
        if self.ways < 2:
            raise ValueError(f"ways must be at least 2, not {self.ways}; for 1 use allreduce()")

    def check(self, workers: int) -> None:
        """A multiple of the ways."""
        super().check(workers)
        if workers % self.ways:
            more = workers + self.ways - workers % self.ways
            raise ValueError(
                f"{workers} workers cannot be divided into models of {self.ways}; use {more}"
            )

    def check_job(self, job: Job, workers: int) -> None:
        """Something must be there to split."""
        self._hybrid(workers).check_job(job, workers)

    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """A mesh of models and ways."""
        return self._hybrid(group.size).bind(job, group, device, waits)

    def forecast(
        self, parameters: Sequence[TensorSize], workers: int, layers: Sequence[LayerSize] = ()
    ) -> Forecast:
        """As a hybrid's."""
        self.check(workers)
        return self._hybrid(workers).forecast(parameters, workers, layers)

    def forecast_job(self, job: Job, workers: int) -> Forecast:
        """As a hybrid's."""
        self.check(workers)
        return self._hybrid(workers).forecast_job(job, workers)

    def _hybrid(self, workers: int) -> Hybrid:
        return Hybrid(data=workers // self.ways, tensor=self.ways, plan=self.plan)
