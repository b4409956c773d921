"""Parameters and optimizer states offloaded to the host's memory, on PyTorch's FSDP2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.costs import PLAIN
from manyhands.placements.fully_sharded import FullySharded, sharded_program
from manyhands.placements.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn

    from manyhands.collectives import StepProgram
    from manyhands.costs import ComputeConditions, Forecast, TensorSize
    from manyhands.job import Job
    from manyhands.placements.bound import Bound
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


@dataclass(frozen=True, repr=False)
class Offload(Placement):
    """Keep parameters and optimizer states in host memory; copy units to the device when needed.

    As in `fully_sharded()` each worker has 1/N of everything, here in the host's memory. A unit's
    parameters are copied to the device before it computes and freed afterwards, its gradients are
    copied back, and the CPU runs the optimizer, unit by unit, while the device begins the next
    forward pass. It also works with one worker, which holds everything in host memory and a few
    units on the device.

    Use it if the model fits into the host's memory but not into the device's. Each step copies the
    parameters to the device twice and the gradients back once.

    Example: `offload()`

    Paper: Ren et al., ZeRO-Offload: Democratizing Billion-Scale Model Training, USENIX ATC 2021.
    """

    name: ClassVar[str] = "offload"
    support: ClassVar[Literal["experimental"]] = "experimental"
    lacks: ClassVar[dict[str, str]] = {
        "codec": "torch's engine reduces the gradients; use fully_sharded(codec=bfloat16())"
    }

    reshard_after_forward: bool = True
    """Free a unit's parameters between its forward and its backward."""

    def check_job(self, job: Job, workers: int) -> None:
        """Raise ValueError if a parameter cannot be sharded by rows."""
        from manyhands.placements.model.fsdp_support import check_shardable  # noqa: PLC0415 - torch is lazy

        super().check_job(job, workers)
        check_shardable(self, job)

    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """Shards in the host's memory, and a thread that runs the optimizer."""
        from manyhands.engine.sharding import shard  # noqa: PLC0415 - torch is lazy
        from manyhands.parameters.module_units import separate_units  # noqa: PLC0415
        from manyhands.placements.worker.offloaded import Offloaded  # noqa: PLC0415
        from manyhands.transport.mesh import Mesh  # noqa: PLC0415

        mesh = Mesh(group, {"shard": group.size}, waits, shares_memory=True)

        def spread(model: nn.Module) -> None:
            shard(
                model,
                separate_units(model),
                mesh.handle,
                reshard_after_forward=self.reshard_after_forward,
                offload=True,
            )

        bound = Offloaded(job, group, device, spread)
        bound.words = mesh.words
        return bound

    def shared_bytes(self, job: Job, workers: int) -> int:
        """As fully_sharded()."""
        return FullySharded().shared_bytes(job, workers)

    def forecast(self, parameters: Sequence[TensorSize], workers: int) -> Forecast:
        """As fully_sharded(); its memory is the sum of the host's and the device's."""
        return FullySharded(reshard_after_forward=self.reshard_after_forward).forecast(
            parameters, workers
        )

    def program(self, job: Job, workers: int, conditions: ComputeConditions = PLAIN) -> StepProgram:
        """As fully_sharded(); copies between the host's memory and a device take no time."""
        return sharded_program(
            job,
            workers,
            reshard_after_forward=self.reshard_after_forward,
            overlaps=conditions.overlaps,
        )
