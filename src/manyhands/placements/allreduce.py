"""Synchronous data parallelism on PyTorch's DistributedDataParallel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.costs import Collective, Forecast
from manyhands.placements.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch
    from torch import nn

    from manyhands.costs import TensorSize
    from manyhands.job import Job
    from manyhands.placements.bound import Bound
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, repr=False)
class AllReduce(Placement):
    """Average every gradient over all workers in every step (synchronous SGD).

    W ← W − λ·(1/B) Σ_n Σ_{i in n's part} ΔW_i: each worker holds the whole model and a part of
    the global batch of B samples, and the replicas stay identical. Gradients are reduced in
    buckets while the backward pass still computes the earlier layers.

    Use it with workers of equal speed and a network that is fast for the size of the model: a step
    takes as long as its slowest worker, and each worker sends 2·m·(N − 1)/N bytes per step for m
    bytes of gradients and N workers.

    Example: `allreduce(bucket_mb=10)`

    Paper: Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training,
    VLDB 2020.
    """

    name: ClassVar[str] = "allreduce"
    support: ClassVar[Literal["stable"]] = "stable"
    needs_less: ClassVar[str] = (
        "fully_sharded(), where each of N workers holds 1/N of the model, or zero(stage=1), "
        "where it holds 1/N of the optimizer's state"
    )

    bucket_mb: float = 25.0
    """Size of gradient buckets in MiB. Small buckets start earlier, large buckets spend less time
    on latency."""
    find_unused: bool = False
    """Search for parameters without a gradient in every step, as DDP's `find_unused_parameters`.
    Needed by models that use only a part of their parameters in a step; costs a traversal of the
    autograd graph."""

    def __post_init__(self) -> None:
        if not 0 < self.bucket_mb <= 1024:
            raise ValueError(f"bucket_mb must be above 0 and at most 1024, got {self.bucket_mb}")

    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """A replica wrapped in DistributedDataParallel over the group's own process group."""
        from manyhands.placements.worker.whole_model import WholeModel  # noqa: PLC0415 - torch is lazy

        return WholeModel(job, group, device, waits, self.wrapper(group, waits))

    def wrapper(self, group: Group, waits: Waits) -> Callable[[nn.Module], nn.Module]:
        """A function that wraps a module in DDP, so that the group averages its gradients.

        Buffers are not broadcast in every step, which is DDP's default: batch-norm reads them only
        in evaluation, and the trainer averages them there (docs/meanings.md).
        """
        from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

        from manyhands.engine.fake_tensors import is_fake  # noqa: PLC0415

        if is_fake():
            from manyhands.engine.fake_ddp import FakeDDP  # noqa: PLC0415

            return partial(
                FakeDDP,
                cap=int(self.bucket_mb * MEBIBYTE),
                note=lambda size: waits.note("allreduce", size, group.size),
                find_unused=self.find_unused,
            )
        return lambda module: DistributedDataParallel(
            module,
            process_group=group.handle,
            bucket_cap_mb=self.bucket_mb,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
            find_unused_parameters=self.find_unused,
        )

    def forecast(self, parameters: Sequence[TensorSize], workers: int) -> Forecast:
        """A broadcast of the model at the start, and one allreduce per bucket in every step.

        DDP fills buckets in the order in which gradients arrive, last layer first. With
        `find_unused` it keeps buckets in the order of the model's parameters.
        """
        self.check(workers)
        trained = [tensor.size for tensor in parameters if tensor.trained]
        everything = sum(tensor.size for tensor in parameters)
        cap = int(self.bucket_mb * MEBIBYTE)
        buckets = _fill(trained, cap)[::-1] if self.find_unused else _fill(reversed(trained), cap)
        return Forecast(
            start=(Collective("broadcast", everything),),
            step=tuple(Collective("allreduce", size) for size in buckets),
            memory=everything + sum(trained),
        )


def _fill(sizes: Iterable[int], cap: int) -> list[int]:
    """Sizes of the buckets; a bucket is closed by the tensor with which it reaches the cap."""
    buckets: list[int] = []
    filled = 0
    for size in sizes:
        filled += size
        if filled >= cap:
            buckets.append(filled)
            filled = 0
    return [*buckets, filled] if filled else buckets
