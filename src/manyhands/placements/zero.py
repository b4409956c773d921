"""ZeRO: optimizer states, gradients and parameters sharded among data-parallel workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from manyhands.collectives import FORWARD, StepProgram, overlapped, program_of, waiting
from manyhands.costs import PLAIN, Collective, Forecast
from manyhands.placements.allreduce import MEBIBYTE, AllReduce
from manyhands.placements.fully_sharded import FullySharded, sharded_forecast, sharded_program
from manyhands.placements.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from manyhands.costs import ComputeConditions, TensorSize
    from manyhands.job import Job
    from manyhands.placements.bound import Bound
    from manyhands.runtime_needs import Option
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits

_BUCKET_MB: Final = 25.0


@dataclass(frozen=True, repr=False)
class Zero(Placement):
    """Shard among N workers what data parallelism replicates N times, in three stages.

    Stage 1 shards the optimizer states: each worker updates its rows of every parameter, and the
    rows are gathered. Stage 2 shards the gradients as well: they are reduced and scattered, and
    the parameters gathered once per step. Stage 3 shards the parameters as well, and is
    `fully_sharded()`. With m bytes of parameters and an optimizer that keeps k·m (Adam: 2·m), a
    worker holds m·(2 + k/N), m + m·(1 + k)/N or m·(2 + k)/N, and a few gathered layers.

    Use the lowest stage that fits: a worker sends 3·m·(N − 1)/N, 2·m·(N − 1)/N or
    3·m·(N − 1)/N bytes per step.

    Example: `zero(stage=2)`

    Paper: Rajbhandari, Rasley, Ruwase, He, ZeRO: Memory Optimizations Toward Training Trillion
    Parameter Models, SC 2020.
    """

    name: ClassVar[str] = "zero"
    support: ClassVar[Literal["beta"]] = "beta"
    lacks: ClassVar[dict[str, str]] = {
        "codec": "torch's ZeRO step reduces gradients itself; use allreduce()"
    }
    needs_less: ClassVar[str] = "a higher stage, if there is one, or more workers"

    stage: int = 1
    """1: shard optimizer states; 2: gradients as well; 3: parameters as well."""
    bucket_mb: float = _BUCKET_MB
    """For stage 1: size of the buckets of gradients, and of parameters, in MiB."""

    def __post_init__(self) -> None:
        if self.stage not in (1, 2, 3):
            raise ValueError(f"stage must be 1, 2 or 3, got {self.stage}")
        if self.stage > 1 and self.bucket_mb != _BUCKET_MB:
            raise ValueError(
                f"bucket_mb={self.bucket_mb} is for stage=1: with stage={self.stage} gradients are "
                "reduced and parameters gathered block by block, without buckets: leave it out"
            )
        AllReduce(bucket_mb=self.bucket_mb)

    def obstacle(self, option: Option) -> str:
        """As in `Placement`; stage 1 keeps whole replicas."""
        whole = self.stage == 1 and option in ("compile", "sync_batchnorm")
        return "" if whole else super().obstacle(option)

    def calling_alike(self, workers: int) -> int:
        """As fully_sharded(), from stage 2 on; in stage 1 workers have whole parameters."""
        return workers if self.stage > 1 else 0

    def check_job(self, job: Job, workers: int) -> None:
        """Raise ValueError if a parameter cannot be sharded by rows, from stage 2 on."""
        from manyhands.placements.model.fsdp_support import check_shardable  # noqa: PLC0415 - torch is lazy

        super().check_job(job, workers)
        if self.stage > 1:
            check_shardable(self, job)

    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """Stage 1 on DistributedDataParallel, stages 2 and 3 on FSDP2."""
        if self.stage > 1:
            return FullySharded(reshard_after_forward=self.stage == 3).bind(
                job, group, device, waits
            )
        from manyhands.placements.worker.sharded_optimizer import ShardedOptimizer  # noqa: PLC0415 - torch is lazy
        from manyhands.transport.mesh import Mesh  # noqa: PLC0415

        mesh = Mesh(group, {"shard": group.size}, waits, shares_memory=True)
        wrap = AllReduce(bucket_mb=self.bucket_mb).wrapper(group, waits, at_end=True)
        bucket = int(self.bucket_mb * MEBIBYTE)
        return ShardedOptimizer(job, group, device, waits, wrap, mesh, bucket)

    def forecast(self, parameters: Sequence[TensorSize], workers: int) -> Forecast:
        """Stage 1: the collectives of allreduce(), then an all_gather per bucket of parameters."""
        self.check(workers)
        if self.stage > 1:
            return sharded_forecast(parameters, workers, reshard_after_forward=self.stage == 3)
        reduced = AllReduce(bucket_mb=self.bucket_mb).forecast(parameters, workers)
        trained = [tensor for tensor in parameters if tensor.trained]
        gathered = list(_fill(trained, int(self.bucket_mb * MEBIBYTE), workers))
        return Forecast(
            start=reduced.start,
            step=(*reduced.step, *(Collective("all_gather", size) for size in gathered)),
            memory=reduced.memory + 2 * max(gathered, default=0),
            shared=reduced.shared,
        )

    def shared_bytes(self, job: Job, workers: int) -> int:
        """As fully_sharded(), for what is gathered; and as allreduce() in stage 1."""
        gathered = FullySharded().shared_bytes(job, workers)
        return gathered + (self.forecast_job(job, workers).shared if self.stage == 1 else 0)

    def program(self, job: Job, workers: int, conditions: ComputeConditions = PLAIN) -> StepProgram:
        """Stage 1: buckets are summed beside the backward pass; then parameters are gathered."""
        if self.stage > 1:
            reshard = self.stage == 3
            return sharded_program(
                job, workers, reshard_after_forward=reshard, overlaps=conditions.overlaps
            )
        forecast = self.forecast_job(job, workers)
        summed = [(one.kind, one.size) for one in forecast.step if one.kind == "allreduce"]
        gathered = [one for one in forecast.step if one.kind == "all_gather"]
        timed = overlapped(summed, FORWARD) + [waiting(one.kind, one.size, 1.0) for one in gathered]
        return program_of(timed, workers, ((one.kind, one.size) for one in forecast.start))


def _fill(tensors: Sequence[TensorSize], limit: int, workers: int) -> Iterator[int]:
    """Padded bytes of the buckets in which parameters are gathered."""
    size = padded = 0
    for tensor in tensors:
        if size >= limit:
            yield padded
            size = padded = 0
        size += tensor.size
        padded += tensor.padded(workers)
    if padded:
        yield padded
