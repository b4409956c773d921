"""Long sequences divided among workers, with heads exchanged for positions in attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.costs import Collective, Forecast
from manyhands.placements.allreduce import AllReduce
from manyhands.placements.placement import Placement, check_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from manyhands.costs import LayerSize, TensorSize
    from manyhands.job import Job
    from manyhands.placements.bound import Bound
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


_NUMBER = 4
"""Bytes of a loss, or of how many targets it is taken over; eight in double precision."""


@dataclass(frozen=True, repr=False)
class Context(Placement):
    """Give each worker a stretch of every sequence; in attention, some heads of all of it.

    Of a sequence of T positions worker n computes T/ways, in all layers that look at positions one
    by one. Before attention the workers exchange: each gives away the queries, keys and values of
    other heads at its positions, and gets those of its own heads at all positions. Afterwards they
    exchange back. Every worker holds the whole model, and gradients are averaged over all. With
    more workers than ways there are several such models, trained on different samples.

    Use it when the activations of a sequence do not fit on one worker. A worker sends four times
    the activation of its stretch per attention and direction, whatever the ways.

    Example: `context(ways=2)`

    Paper: Jacobs et al., DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme
    Long Sequence Transformer Models, 2023.
    """

    name: ClassVar[str] = "context"
    support: ClassVar[Literal["beta"]] = "beta"

    ways: int = 2
    """Workers that share a sequence; they divide its length and the heads of each attention."""
    before: str = ""
    """The module before which sequences are divided; by default the first of those that repeat."""
    bucket_mb: float = 25.0
    """Mebibytes of gradients that travel together, as under allreduce()."""

    def __post_init__(self) -> None:
        if self.ways < 2:
            raise ValueError(f"ways must be at least 2, not {self.ways}; for 1 use allreduce()")
        AllReduce(bucket_mb=self.bucket_mb)

    def check(self, workers: int) -> None:
        """A multiple of the ways."""
        super().check(workers)
        if workers % self.ways:
            more = workers + self.ways - workers % self.ways
            raise ValueError(
                f"{workers} workers cannot be divided into models of {self.ways}; use {more}"
            )

    def check_job(self, job: Job, workers: int) -> None:  # noqa: ARG002 - the contract
        """Sequences must be divisible, and there must be attention, so far as one can see."""
        from manyhands.placements.forecasts.layer_sizes import look_at  # noqa: PLC0415 - torch is lazy
        from manyhands.placements.model.sample_batch import example  # noqa: PLC0415

        inputs = example(job, 1)
        if inputs.dim() < 2 or inputs.shape[1] % self.ways:
            raise ValueError(
                f"{self} divides dim 1 of the inputs by {self.ways}, and they are of shape "
                f"{tuple(inputs.shape)}; choose another length, or other ways"
            )
        try:
            layers = look_at(job.model, inputs, {})
        except Exception:  # noqa: BLE001 - not every model can be looked at without its numbers
            layers = None
        if layers is not None and not layers:
            raise ValueError(
                f"{self} divides what scaled_dot_product_attention computes, and the model never "
                "calls it; use fully_sharded() for a model without attention"
            )
        self._check_model(job)

    def _check_model(self, job: Job) -> None:
        """There must be a module before which sequences are divided."""
        from manyhands.parameters.initial.deferred import on_meta  # noqa: PLC0415 - torch is lazy
        from manyhands.placements.worker.sequence_shard import first_divided  # noqa: PLC0415

        try:
            model = on_meta(job.model)
        except Exception:  # noqa: BLE001 - not every model can be made without its numbers
            return
        first_divided(model, self.before)

    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """A replica on every worker, which sees a stretch of its samples."""
        from manyhands.placements.worker.sequence_shard import SequenceShard  # noqa: PLC0415 - torch is lazy
        from manyhands.transport.mesh import Mesh  # noqa: PLC0415

        mesh = Mesh(group, {"data": group.size // self.ways, "context": self.ways}, waits)
        wrap = AllReduce(bucket_mb=self.bucket_mb).wrapper(group, waits)
        return SequenceShard(job, group, device, waits, wrap, mesh, self.before)

    def forecast(
        self, parameters: Sequence[TensorSize], workers: int, layers: Sequence[LayerSize] = ()
    ) -> Forecast:
        """Two exchanges per attention and direction, the loss, and allreduce's buckets."""
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
        """What goes through attention is looked at."""
        from manyhands.placements.forecasts.layer_sizes import sizes_and_layers  # noqa: PLC0415 - torch is lazy

        self.check(workers)
        parameters, layers = sizes_and_layers(job, workers // self.ways, {})
        return self.forecast(parameters, workers, layers)
