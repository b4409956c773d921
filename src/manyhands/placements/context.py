"""Context parallelism: long sequences divided among workers, with all-to-all around attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.collectives import FORWARD, StepProgram, evenly, overlapped, program_of, waiting
from manyhands.costs import PLAIN, Collective, Forecast
from manyhands.placements.allreduce import AllReduce
from manyhands.placements.placement import Placement, check_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from manyhands.costs import ComputeConditions, LayerSize, TensorSize
    from manyhands.job import Job
    from manyhands.placements.bound import Bound
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


_NUMBER = 4
"""Bytes of a loss, or of its number of targets; eight in double precision."""


@dataclass(frozen=True, repr=False)
class Context(Placement):
    """Give each worker a shard of every sequence; in attention, some heads of the whole sequence.

    Worker n computes T/ways of a sequence's T positions in all layers that treat positions
    independently. Before attention there is an all-to-all: each worker sends the queries, keys and
    values of the other workers' heads at its positions, and receives those of its own heads at all
    positions. A second all-to-all after attention reverts that. Every worker holds the whole model,
    and gradients are averaged over all workers. With more workers than `ways` there are several
    such replicas, trained on different samples.

    Use it if the activations of a sequence do not fit on one worker. A worker sends four times the
    activation of its shard per attention and direction, whatever `ways` is.

    Example: `context(ways=2)`

    Paper: Jacobs et al., DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme
    Long Sequence Transformer Models, 2023.
    """

    name: ClassVar[str] = "context"
    support: ClassVar[Literal["beta"]] = "beta"
    lacks: ClassVar[dict[str, str]] = {
        "codec": "keys and values are exchanged, and every one is needed whole"
    }

    ways: int = 2
    """Workers per sequence; they divide its length, and the heads of each attention."""
    before: str = ""
    """The module before which sequences are divided; by default the first of repeated modules."""
    bucket_mb: float = 25.0
    """Size of gradient buckets in MiB, as in allreduce()."""

    def __post_init__(self) -> None:
        if self.ways < 2:
            raise ValueError(f"ways must be at least 2, got {self.ways}: for 1 use allreduce()")
        AllReduce(bucket_mb=self.bucket_mb)

    def check(self, workers: int) -> None:
        """Raise ValueError unless the number of workers is a multiple of `ways`."""
        super().check(workers)
        if workers % self.ways:
            more = workers + self.ways - workers % self.ways
            raise ValueError(
                f"the number of workers must be a multiple of ways={self.ways}, got {workers}: "
                f"use {more}"
            )

    def check_job(self, job: Job, workers: int) -> None:
        """Raise ValueError if sequences cannot be divided evenly, or there is no attention."""
        from manyhands.placements.forecasts.layer_sizes import inspect_layers  # noqa: PLC0415 - torch is lazy
        from manyhands.placements.model.sample_batch import example  # noqa: PLC0415

        super().check_job(job, workers)
        if job.objective is not None:
            raise ValueError(
                f"{self} divides inputs and targets along the sequence, and an objective gets "
                "batches of any form: give loss=loss(outputs, targets) and pairs (input, target), "
                "or use allreduce() or fully_sharded()"
            )
        inputs = example(job, 1)
        if inputs.dim() < 2 or inputs.shape[1] % self.ways:
            raise ValueError(
                f"{self} divides dim 1 of the inputs into {self.ways} equal parts, got inputs of "
                f"shape {tuple(inputs.shape)}: choose another length, or another number of ways"
            )
        try:
            layers = inspect_layers(job.model, inputs, {})
        except Exception:  # noqa: BLE001 - not every model can run on the meta device
            layers = None
        if layers is not None and not layers:
            raise ValueError(
                f"{self} divides scaled_dot_product_attention, and the model never calls it: "
                "use fully_sharded() for a model without attention"
            )
        self._check_model(job)

    def _check_model(self, job: Job) -> None:
        """Raise ValueError if there is no module before which sequences can be divided."""
        from manyhands.parameters.initial.deferred import on_meta  # noqa: PLC0415 - torch is lazy
        from manyhands.placements.worker.sequence_shard import first_divided  # noqa: PLC0415

        try:
            model = on_meta(job.model)
        except Exception:  # noqa: BLE001 - not every model can be created on the meta device
            return
        first_divided(model, self.before)

    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """A replica on every worker, which computes a shard of each sequence."""
        from manyhands.placements.worker.sequence_shard import SequenceShard  # noqa: PLC0415 - torch is lazy
        from manyhands.transport.mesh import Mesh  # noqa: PLC0415

        axes = {"data": group.size // self.ways, "context": self.ways}
        mesh = Mesh(group, axes, waits, shares_memory=True)
        wrap = AllReduce(bucket_mb=self.bucket_mb).wrapper(group, waits)
        bound = SequenceShard(job, group, device, waits, wrap, mesh, self.before)
        bound.words = mesh.words
        return bound

    def shared_bytes(self, job: Job, workers: int) -> int:
        """As allreduce(), and chunks of what is exchanged around attention."""
        from manyhands.transport.shared.layout import mesh_room  # noqa: PLC0415 - torch is lazy

        summed = AllReduce(bucket_mb=self.bucket_mb).shared_bytes(job, workers)
        return summed + mesh_room([workers // self.ways, self.ways])

    def forecast(
        self, parameters: Sequence[TensorSize], workers: int, layers: Sequence[LayerSize] = ()
    ) -> Forecast:
        """Two all-to-alls per attention and direction, the loss, and allreduce's buckets."""
        self.check(workers)
        check_layers(self, layers, "attention")
        exchanges = [
            Collective("all_to_all", size // self.ways, self.ways)
            for layer in layers
            if layer.role == "attention"
            for size in (layer.inputs, layer.outputs)
        ]
        averaged = AllReduce(bucket_mb=self.bucket_mb).forecast(parameters, workers)
        loss = Collective("allreduce", 2 * _NUMBER, self.ways)
        return Forecast(
            start=averaged.start,
            step=(*exchanges, loss, *reversed(exchanges), *averaged.step),
            memory=averaged.memory,
        )

    def forecast_job(self, job: Job, workers: int) -> Forecast:
        """As `forecast`, with the sizes of attention inspected on the meta device."""
        from manyhands.placements.forecasts.layer_sizes import sizes_and_layers  # noqa: PLC0415 - torch is lazy

        self.check(workers)
        parameters, layers = sizes_and_layers(job, workers // self.ways, {}, self.before)
        return self.forecast(parameters, workers, layers)

    def program(self, job: Job, workers: int, conditions: ComputeConditions = PLAIN) -> StepProgram:
        """Workers wait for every exchange around attention; buckets are summed beside them."""
        del conditions
        forecast = self.forecast_job(job, workers)
        # The loss is the first that is summed: before it come the exchanges of the forward pass.
        count = [one.kind for one in forecast.step].index("allreduce")
        exchanges, loss = forecast.step[:count], forecast.step[count]
        back, buckets = forecast.step[count + 1 : 2 * count + 1], forecast.step[2 * count + 1 :]
        timed = [
            waiting(one.kind, one.size, at, self.ways)
            for one, at in zip(exchanges, evenly(count, 0.0, FORWARD), strict=True)
        ]
        timed.append(waiting(loss.kind, loss.size, FORWARD, self.ways))
        timed += [
            waiting(one.kind, one.size, at, self.ways)
            for one, at in zip(back, evenly(count, FORWARD, 1.0), strict=True)
        ]
        timed += overlapped([(one.kind, one.size) for one in buckets], FORWARD)
        timed.sort(key=lambda one: one.begin)
        return program_of(timed, workers, ((one.kind, one.size) for one in forecast.start))
