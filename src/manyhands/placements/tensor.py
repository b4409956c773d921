"""Tensor parallelism as in Megatron-LM: layers split among workers, on PyTorch's DTensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.collectives import FORWARD, StepProgram, evenly, overlapped, program_of, waiting
from manyhands.costs import PLAIN, Collective, Forecast
from manyhands.placements.allreduce import AllReduce
from manyhands.placements.hybrid import Hybrid, check_split
from manyhands.placements.placement import Placement, check_layers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch import nn

    from manyhands.costs import ComputeConditions, LayerSize, TensorSize
    from manyhands.job import Job
    from manyhands.placements.bound import Bound
    from manyhands.placements.model.tensor_plan import TensorPlan
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


_COUNT = 8
"""Bytes of a number of samples, which workers exchange with samples=own."""


@dataclass(frozen=True, repr=False)
class Tensor(Placement):
    """Split each layer among several workers, which compute its parts in parallel.

    Y = f(X·A)·B: worker n holds A_n, a part of the columns of A, and B_n, the same part of the
    rows of B, and computes f(X·A_n)·B_n; the sum over the workers is Y. In attention the columns
    are those of query, key and value, and a part of them is some of the heads. The workers of one
    replica get the same samples; with more workers than `ways` there are several replicas, trained
    on different samples.

    Use it if a layer's parameters or activations do not fit on one worker, and the workers have
    fast links: in each block an activation is summed over the workers twice in the forward and
    twice in the backward pass.

    Example: `tensor(ways=2)`

    Paper: Shoeybi et al., Megatron-LM: Training Multi-Billion Parameter Language Models Using
    Model Parallelism, 2019.
    """

    name: ClassVar[str] = "tensor"
    support: ClassVar[Literal["beta"]] = "beta"
    lacks: ClassVar[dict[str, str]] = {
        "codec": "activations are exchanged, and every one is needed whole"
    }

    ways: int = 2
    """Workers that share each layer."""
    plan: tuple[str, ...] = ()
    """Layers to split: "*.mlp.up column", "*.mlp.down row". By default they are found: pairs of
    linear layers with operations in between that can be computed on parts."""
    samples: Literal["same", "own"] = "same"
    """Whether the workers of a replica get the same samples, or each its own. With own, layers that
    are not split are data-parallel, and samples are gathered before layers that are split."""

    def __post_init__(self) -> None:
        if self.samples == "own" and self.plan:
            raise ValueError("samples=own finds the layers to split by itself: leave out plan")
        if self.ways < 2:
            raise ValueError(f"ways must be at least 2, got {self.ways}: for 1 use allreduce()")

    def calling_alike(self, workers: int) -> int:
        """Divided layers are computed together; with samples=same by workers with one part."""
        return workers if self.samples == "own" else workers // self.ways

    def check(self, workers: int) -> None:
        """Raise ValueError unless the number of workers is a multiple of `ways`."""
        super().check(workers)
        if self.samples == "own" and workers != self.ways:
            raise ValueError(f"{self} needs {self.ways} workers, got {workers}: use ways={workers}")
        if workers % self.ways:
            more = workers + self.ways - workers % self.ways
            raise ValueError(
                f"the number of workers must be a multiple of ways={self.ways}, got {workers}: "
                f"use {more}"
            )

    def check_job(self, job: Job, workers: int) -> None:
        """Raise ValueError if there is nothing to split."""
        super().check_job(job, workers)
        if self.samples == "own" and job.micro_batch is not None:
            raise ValueError(
                f"{self} gathers the samples of all workers, which does not work with "
                "micro-batches: leave micro_batch out of the job"
            )
        check_split(job, self._find)

    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """The model on a mesh with the axes `data` and `tensor`."""
        if self.samples == "same":
            return self._hybrid(group.size).bind(job, group, device, waits)
        from manyhands.engine.tensor_parallel import ignore_in_ddp  # noqa: PLC0415 - torch is lazy
        from manyhands.placements.worker.tensor_own_samples import TensorOwnSamples  # noqa: PLC0415
        from manyhands.transport.mesh import Mesh  # noqa: PLC0415

        def wrap(module: nn.Module, split: list[str]) -> nn.Module:
            ignore_in_ddp(module, split)
            return AllReduce().wrapper(group, waits)(module)

        mesh = Mesh(group, {"tensor": group.size}, waits)
        return TensorOwnSamples(job, group, device, waits, wrap, mesh, self._find)

    def shared_bytes(self, job: Job, workers: int) -> int:
        """As hybrid(); with samples=own, those of allreduce()."""
        if self.samples == "same":
            return self._hybrid(workers).shared_bytes(job, workers)
        return AllReduce().shared_bytes(job, workers)

    def forecast(
        self, parameters: Sequence[TensorSize], workers: int, layers: Sequence[LayerSize] = ()
    ) -> Forecast:
        """As hybrid(); with samples=own, samples are gathered and results scattered."""
        self.check(workers)
        if self.samples == "same":
            return self._hybrid(workers).forecast(parameters, workers, layers)
        check_layers(self, layers, "column", "row")
        step = [Collective("all_gather", _COUNT * workers)]
        for layer in layers:
            if layer.role == "column":
                step.append(Collective("all_gather", layer.inputs * workers))
            elif layer.role == "row":
                step.append(Collective("reduce_scatter", layer.outputs * workers))
        for layer in reversed(layers):
            if layer.role == "row":
                step.append(Collective("all_gather", layer.outputs * workers))
            elif layer.role == "column" and layer.learns:
                step.append(Collective("reduce_scatter", layer.inputs * workers))
        roles = {layer.name: layer.role for layer in layers}
        copied = [one for one in parameters if not _is_split(one.name, roles)]
        averaged = AllReduce().forecast(copied, workers)
        parts = sum(one.size for one in parameters if one not in copied) // workers
        return Forecast(
            start=averaged.start, step=(*step, *averaged.step), memory=averaged.memory + 2 * parts
        )

    def forecast_job(self, job: Job, workers: int) -> Forecast:
        """As hybrid()."""
        self.check(workers)
        if self.samples == "same":
            return self._hybrid(workers).forecast_job(job, workers)
        from manyhands.placements.forecasts.layer_sizes import (  # noqa: PLC0415 - torch is lazy
            sizes_and_layers,
            tensor_roles,
        )

        roles = tensor_roles(job.model, self._find)
        parameters, layers = sizes_and_layers(job, workers, roles)
        return self.forecast(parameters, workers, layers)

    def program(self, job: Job, workers: int, conditions: ComputeConditions = PLAIN) -> StepProgram:
        """As hybrid(); with samples=own workers wait for each exchange, but not for buckets."""
        if self.samples == "same":
            return self._hybrid(workers).program(job, workers, conditions)
        forecast = self.forecast_job(job, workers)
        summed = [(one.kind, one.size) for one in forecast.step if one.kind == "allreduce"]
        others = [one for one in forecast.step if one.kind != "allreduce"]
        times = evenly(len(others), 0.0, 1.0)
        timed = [waiting(one.kind, one.size, at) for one, at in zip(others, times, strict=True)]
        timed = sorted(timed + overlapped(summed, FORWARD), key=lambda one: one.begin)
        return program_of(timed, workers, ((one.kind, one.size) for one in forecast.start))

    def _hybrid(self, workers: int) -> Hybrid:
        return Hybrid(data=workers // self.ways, tensor=self.ways, plan=self.plan)

    def _find(self, model: nn.Module) -> TensorPlan:
        from manyhands.placements.model.mesh_layout import plan_of  # noqa: PLC0415 - torch is lazy

        return plan_of(model, self.ways, self.plan, str(self))


def _is_split(parameter: str, roles: Mapping[str, str]) -> bool:
    layer, _, kind = parameter.rpartition(".")
    role = roles.get(layer)
    return role in ("column", "beside") or (role == "row" and kind == "weight")
