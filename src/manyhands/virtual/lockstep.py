"""Virtual runs of strategies whose workers step together by collectives.

No worker can continue without the others, so a worker that dies ends the run, as it does live.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from manyhands.costs import ComputeConditions
from manyhands.failure import RunFailed
from manyhands.faults import Cut
from manyhands.leasing.leases import Leases
from manyhands.virtual.coordinator import VirtualCoordinator
from manyhands.virtual.remembered import remembered
from manyhands.virtual.time_only import TimeOnlyWorld
from manyhands.virtual.worker.group import VirtualGroup
from manyhands.virtual.worker.lockstep import (
    BucketModel,
    PlacedModel,
    PlacedReplica,
    SizedBucketModel,
    SizedLockstepReplica,
    SizedPlacedModel,
    SizedPlacedReplica,
    VirtualLockstepReplica,
)
from manyhands.virtual.world import World

if TYPE_CHECKING:
    import torch
    from torch import nn

    from manyhands.collectives import StepProgram
    from manyhands.endpoint import Endpoint
    from manyhands.faults import Fault
    from manyhands.job import Job
    from manyhands.placements import PlacedProtocol
    from manyhands.protocols import LockstepProtocol, StrategyProtocol
    from manyhands.runtime_needs import RuntimeNeeds
    from manyhands.virtual.conditions.process_hosts import ProcessHosts
    from manyhands.virtual.conditions.run_conditions import Conditions
    from manyhands.virtual.log import Logs, WorkerLog
    from manyhands.virtual.simulator.kernel import Kernel
    from manyhands.virtual.worker.endpoint import VirtualEndpoint
    from manyhands.virtual.worker.record import WorkerRecord
    from manyhands.virtual.worker.replica import VirtualReplica
    from manyhands.virtual.worker.shared_model import SharedModel


class WholeBatchLeases(Leases):
    """Leases of workers that wait for each other: a global batch that was begun is dealt to all."""

    def stop(self) -> None:
        """Begin no further global batch, because a limit is reached."""
        self._stopped = True


class LockstepCoordinator(VirtualCoordinator):
    """The coordinator of workers that step together."""

    leases_class: ClassVar[type[Leases]] = WholeBatchLeases


class LockstepWorld(World):
    """The workers of a run that step together, each with a replica of its own."""

    replica_class: ClassVar[type[VirtualReplica]] = VirtualLockstepReplica
    coordinator_class: ClassVar[type[VirtualCoordinator]] = LockstepCoordinator
    _group: VirtualGroup | None = None

    def _new_model(self, workers: int) -> SharedModel:
        protocol = cast("LockstepProtocol", self._protocol)
        options = {"from_first": protocol.fills_from_first, "divides": workers > 1}
        return BucketModel(self._job, protocol.bucket_bytes, **options)

    def begin(self) -> None:
        """Start all processes; the first worker has the initial parameters, and sends them."""
        first = self._shared_model.first_parameters()
        super().begin()
        begins = self._workers[0].replication
        if begins is not None:
            begins.parameters[0].copy_(first[0])

    def _with_codecs(self, endpoint: VirtualEndpoint, rank: int, log: WorkerLog) -> Endpoint:
        """The endpoint of a worker, with collectives."""
        if self._group is None:
            hosts = [one.member.host for one in self._workers]
            self._group = VirtualGroup(self._kernel, self._network, hosts)
        return self._group.join(endpoint, rank, log)

    def shared(self) -> nn.Module:
        """The model, with the mean of the workers' buffers."""
        model = cast("BucketModel", self._shared_model)
        held = [one.replication for one in self._workers if one.replication is not None]
        return model.shared([model.mean_of(held)], held[0])

    def expect(self, fault: Fault) -> None:
        """Schedule a fault."""
        if isinstance(fault, Cut):
            self._network.cut(fault.a, fault.b, fault.start, fault.stop)
            self._kernel.after(fault.start, partial(self._note, fault))
        else:
            super().expect(fault)

    def _lose(self, worker: WorkerRecord, life: int) -> None:  # noqa: ARG002 - the contract
        self._record_death("lost", worker.member)
        words = f"{worker.member.name} died after {worker.member.deaths[-1]:g} s"
        fix = "a strategy with servers, such as synchronous(), continues without it"
        self._kernel.fail(
            RunFailed(f"{words}, and {self._protocol} needs all of its workers: {fix}")
        )

    def _return(self, rank: int) -> None:
        self._lose(self._workers[rank], self._workers[rank].member.life)


class TimeOnlyLockstepWorld(LockstepWorld, TimeOnlyWorld):
    """A run of such a strategy without numbers."""

    replica_class: ClassVar[type[VirtualReplica]] = SizedLockstepReplica

    def _new_model(self, workers: int) -> SharedModel:
        protocol = cast("LockstepProtocol", self._protocol)
        model = SizedBucketModel(
            self._job, protocol.bucket_bytes, workers, from_first=protocol.fills_from_first
        )
        return cast("SharedModel", model)


class PlacedWorld(LockstepWorld):
    """The workers of a placement: one replica, and the times of all."""

    replica_class: ClassVar[type[VirtualReplica]] = PlacedReplica

    def __init__(
        self,
        job: Job,
        protocol: StrategyProtocol,
        places: ProcessHosts,
        conditions: Conditions,
        kernel: Kernel,
        logs: Logs,
        shared_model: SharedModel | None = None,
    ) -> None:
        overlaps = any(host.devices for host in places.cluster.hosts)
        self._computing = ComputeConditions(overlaps, conditions.pieces, conditions.coding)
        super().__init__(job, protocol, places, conditions, kernel, logs, shared_model)
        workers, placed = len(places.workers), cast("PlacedProtocol", protocol)
        key = ("memory", str(protocol), workers)
        memory = remembered(job, key, lambda: placed.memory(job, workers))
        words = f"{memory / 1e6:,.3f} MB per worker by the forecast"
        logs.coordinator.setting("memory", words, "default")

    def _program(self, workers: int) -> StepProgram:
        protocol = cast("PlacedProtocol", self._protocol)
        job, conditions = self._job, self._computing
        key = ("program", str(protocol), workers, conditions)
        return remembered(job, key, lambda: protocol.program(job, workers, conditions))

    def _new_model(self, workers: int) -> SharedModel:
        return PlacedModel(self._job, self._program(workers))

    def _share(self) -> list[torch.Tensor] | None:
        return self._shared_model.first_parameters()

    def begin(self) -> None:
        """Start all processes."""
        World.begin(self)

    def shared(self) -> nn.Module:
        """The one replica."""
        return World.shared(self)


class TimeOnlyPlacedWorld(PlacedWorld, TimeOnlyWorld):
    """A run of a placement without numbers."""

    replica_class: ClassVar[type[VirtualReplica]] = SizedPlacedReplica

    def _new_model(self, workers: int) -> SharedModel:
        model = SizedPlacedModel(self._job, workers, self._program(workers))
        return cast("SharedModel", model)


def world_class(needs: RuntimeNeeds, *, time_only: bool) -> type[World]:
    """The world of a run, with numbers or without."""
    if needs.one_replica:
        return TimeOnlyPlacedWorld if time_only else PlacedWorld
    if needs.collectives:
        return TimeOnlyLockstepWorld if time_only else LockstepWorld
    return TimeOnlyWorld if time_only else World
