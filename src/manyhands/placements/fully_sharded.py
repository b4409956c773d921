"""Parameters, gradients and optimizer states sharded over all workers, on PyTorch's FSDP2."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.codecs import Codec  # noqa: TC001 - a field's type is needed when it is read
from manyhands.codecs.reducers import Reducer  # noqa: TC001 - as above
from manyhands.collectives import FORWARD, TimedCollective, program_of
from manyhands.costs import PLAIN, Collective, Forecast
from manyhands.placements.compression.reduce_dtype import (
    check_reduce_dtype,
    reduce_dtype,
    reduced_bytes,
)
from manyhands.placements.placement import Placement, refuse_codec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch import nn

    from manyhands.collectives import StepProgram
    from manyhands.costs import ComputeConditions, TensorSize
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

    def calling_alike(self, workers: int) -> int:
        """A call gathers the parameters of each unit."""
        return workers

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

        mesh = Mesh(group, {"shard": group.size}, waits, shares_memory=True)

        def spread(model: nn.Module) -> None:
            shard(
                model,
                separate_units(model),
                mesh.handle,
                reshard_after_forward=self.reshard_after_forward,
                reduced_as=reduce_dtype(self.codec),
            )

        bound = Sharded(job, group, device, spread)
        bound.words = mesh.words
        return bound

    def shared_bytes(self, job: Job, workers: int) -> int:  # noqa: ARG002 - the contract
        """As in `Placement`: chunks of what is exchanged."""
        from manyhands.transport.shared.layout import mesh_room  # noqa: PLC0415 - torch is lazy

        return mesh_room([workers])

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

    def check_virtual(self, *, numbers: bool = True) -> None:
        """Raise ValueError for a codec, which changes the numbers."""
        del numbers
        refuse_codec(self, self.codec)

    def program(self, job: Job, workers: int, conditions: ComputeConditions = PLAIN) -> StepProgram:
        """Units are gathered and reduced one after another."""
        return sharded_program(
            job,
            workers,
            reshard_after_forward=self.reshard_after_forward,
            overlaps=conditions.overlaps,
        )


def sharded_program(
    job: Job, workers: int, *, reshard_after_forward: bool, overlaps: bool
) -> StepProgram:
    """What workers of FSDP2 do in a step."""
    from manyhands.parameters.initial.deferred import on_meta  # noqa: PLC0415 - torch is lazy
    from manyhands.placements.tensor_sizes import sizes  # noqa: PLC0415

    timed = sharded_times(
        sizes(on_meta(job.model)),
        {"data": 1, "shard": workers, "tensor": 1},
        reshard_after_forward=reshard_after_forward,
        overlaps=overlaps,
    )
    return program_of(timed, workers)


@dataclass(frozen=True)
class UnitCollective:
    """A collective of FSDP2, and the unit that it is for."""

    collective: Collective
    unit: int
    """Its place in the order in which units compute."""
    backward: bool
    """Whether it is for the backward pass."""


def unit_collectives(
    parameters: Sequence[TensorSize],
    workers: int,
    *,
    reshard_after_forward: bool,
    codec: Codec | Reducer | None = None,
) -> tuple[list[UnitCollective], list[int]]:
    """The collectives of FSDP2 in a step, in order, and the gathered bytes of every unit.

    FSDP2 pads rows so that all workers have equally many.
    """
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
    found = [
        UnitCollective(Collective("all_gather", gathered[unit]), number, backward=False)
        for number, unit in enumerate(order)
    ]
    # A unit is asked for before the gradients of the one behind it are sent.
    for number in reversed(range(len(order))):
        unit, ahead = order[number], order[number - 1] if number else ""
        if ahead in let_go:
            again = Collective("all_gather", gathered[ahead])
            found.append(UnitCollective(again, number - 1, backward=True))
        if unit in scattered:
            reduced_unit = Collective("reduce_scatter", scattered[unit])
            found.append(UnitCollective(reduced_unit, number, backward=True))
    return found, [gathered[unit] for unit in order]


def sharded_forecast(
    parameters: Sequence[TensorSize],
    workers: int,
    *,
    reshard_after_forward: bool,
    codec: Codec | Reducer | None = None,
) -> Forecast:
    """The forecast of FSDP2."""
    found, gathered = unit_collectives(
        parameters, workers, reshard_after_forward=reshard_after_forward, codec=codec
    )
    own = sum(gathered) // workers
    largest = sorted(gathered)[-2:]
    return Forecast(
        start=(),
        step=tuple(one.collective for one in found),
        memory=2 * own + (sum(largest) if reshard_after_forward else sum(gathered)),
    )


def sharded_times(
    parameters: Sequence[TensorSize],
    axes: Mapping[str, int],
    *,
    reshard_after_forward: bool,
    overlaps: bool,
) -> list[TimedCollective]:
    """The collectives of FSDP2 on the clock of a step, on the axes `data`, `shard` and `tensor`.

    A unit computes for as long as its share of the bytes. Without `overlaps` a worker waits for
    every collective, as on CPUs, where FSDP2 has no streams. With it a unit is gathered while the
    one before it computes, and gradients are reduced until the end of the step.
    """
    shard, tensor, data = axes["shard"], axes["tensor"], axes["data"]
    found, gathered = unit_collectives(
        parameters, shard, reshard_after_forward=reshard_after_forward
    )
    shares = [size / (sum(gathered) or 1) for size in gathered]
    before = [*accumulate(shares, initial=0.0)]
    timed: list[TimedCollective] = []
    for one in found:
        size, unit = one.collective.size, one.unit
        if one.collective.kind == "reduce_scatter":
            at = FORWARD + (1 - FORWARD) * (1 - before[unit])
            until = 1.0 if overlaps else at
            timed.append(TimedCollective("reduce_scatter", size, at, until, shard, tensor))
            averaged = TimedCollective("allreduce", size // shard, at, until, data, shard * tensor)
            timed.append(averaged)
            continue
        if one.backward:
            # Asked for when the backward pass of the unit behind it begins.
            begin = FORWARD + (1 - FORWARD) * max(0.0, 1 - before[unit + 2])
            needed = FORWARD + (1 - FORWARD) * max(0.0, 1 - before[unit + 1])
        else:
            begin, needed = FORWARD * before[max(0, unit - 1)], FORWARD * before[unit]
        if not overlaps and not one.backward:
            begin = needed
        until = needed if overlaps else begin
        timed.append(TimedCollective("all_gather", size, begin, until, shard, tensor))
    return timed
