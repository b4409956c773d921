"""Parameters, gradients and optimizer states sharded over all workers, on PyTorch's FSDP2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.codecs import Codec  # noqa: TC001 - a field's type is needed when it is read
from manyhands.codecs.reducers import Reducer  # noqa: TC001 - as above
from manyhands.costs import Collective, Forecast
from manyhands.placements.compression.reduce_dtype import (
    check_reduce_dtype,
    reduce_dtype,
    reduced_bytes,
)
from manyhands.placements.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn

    from manyhands.costs import TensorSize
    from manyhands.job import Job
    from manyhands.placements.bound import Bound
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


@dataclass(frozen=True, repr=False)
class FullySharded(Placement):
    """Hold 1/N of every parameter, its gradient and its optimizer state; gather layers when used.

    Worker n holds the n-th part of the rows of every parameter. Before a unit (a block of the
    model) computes, its parameters are gathered; afterwards they are freed. Its gradients are
    reduced and scattered, and each worker's optimizer updates its own rows:
    W_n ← W_n − λ·(1/B)·(Σ_k Σ_{i in k's part} ΔW_i)_n.

    Use it if the model, its gradients and its optimizer state do not fit on one worker. A worker
    sends 3·m·(N − 1)/N bytes per step for m bytes of parameters, 1.5 times as many as under
    allreduce().

    Example: `fully_sharded()`

    Paper: Zhao et al., PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel,
    VLDB 2023.
    """

    name: ClassVar[str] = "fully_sharded"
    support: ClassVar[Literal["beta"]] = "beta"

    reshard_after_forward: bool = True
    """Free a unit's parameters between its forward and its backward, as in
    `torch.distributed.fsdp.fully_shard`. Otherwise they are gathered once per step, and all of
    them are in memory when the backward pass begins."""
    codec: Codec | Reducer | None = None
    """The dtype in which gradients are reduced: half or bfloat16, without error feedback. By
    default their own."""

    def __post_init__(self) -> None:
        check_reduce_dtype(self.codec, self.name)

    def check_job(self, job: Job, workers: int) -> None:
        """Raise ValueError if a parameter cannot be sharded by rows."""
        from manyhands.placements.model.fsdp_support import check_shardable  # noqa: PLC0415 - torch is lazy

        super().check_job(job, workers)
        check_shardable(self, job)

    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """The sharded model; no worker ever holds all of it."""
        from manyhands.engine.sharding import shard  # noqa: PLC0415 - torch is lazy
        from manyhands.parameters.module_units import separate_units  # noqa: PLC0415
        from manyhands.placements.worker.sharded import Sharded  # noqa: PLC0415
        from manyhands.transport.mesh import Mesh  # noqa: PLC0415

        mesh = Mesh(group, {"shard": group.size}, waits)

        def spread(model: nn.Module) -> None:
            shard(
                model,
                separate_units(model),
                mesh.handle,
                reshard_after_forward=self.reshard_after_forward,
                reduced_as=reduce_dtype(self.codec),
            )

        return Sharded(job, group, device, spread)

    def forecast(self, parameters: Sequence[TensorSize], workers: int) -> Forecast:
        """Each unit is gathered for the forward, and again for the backward if it was freed.

        Then its gradients are reduced and scattered. The last unit is gathered once.
        """
        self.check(workers)
        return sharded_forecast(
            parameters,
            workers,
            reshard_after_forward=self.reshard_after_forward,
            codec=self.codec,
        )


def sharded_forecast(
    parameters: Sequence[TensorSize],
    workers: int,
    *,
    reshard_after_forward: bool,
    codec: Codec | Reducer | None = None,
) -> Forecast:
    """The forecast of FSDP2, which pads rows so that all workers have equally many."""
    gathered: dict[str, int] = {}
    scattered: dict[str, int] = {}
    for tensor in parameters:
        padded = tensor.padded(workers)
        gathered[tensor.unit] = gathered.get(tensor.unit, 0) + padded
        if tensor.trained:
            reduced = reduced_bytes(codec, tensor, padded)
            scattered[tensor.unit] = scattered.get(tensor.unit, 0) + reduced
    order = sorted(gathered, key=lambda unit: unit != "")
    # What belongs to no unit is the model's own; it is gathered first, and kept.
    let_go = set(order[:-1]) - {""} if reshard_after_forward else set()
    backward: list[Collective] = []
    # A unit is asked for before the gradients of the one behind it are sent.
    for unit, ahead in zip(reversed(order), [*reversed(order[:-1]), ""], strict=True):
        if ahead in let_go:
            backward.append(Collective("all_gather", gathered[ahead]))
        if unit in scattered:
            backward.append(Collective("reduce_scatter", scattered[unit]))
    own = sum(gathered.values()) // workers
    largest = sorted(gathered.values())[-2:]
    return Forecast(
        start=(),
        step=(*(Collective("all_gather", gathered[unit]) for unit in order), *backward),
        memory=2 * own + (sum(largest) if reshard_after_forward else sum(gathered.values())),
    )
