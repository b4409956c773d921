"""Manual model parallelism: modules on chosen workers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.costs import PLAIN, Collective, Forecast
from manyhands.placements.forecasts.placed_program import placed_program
from manyhands.placements.placement import Placement, check_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from manyhands.collectives import StepProgram
    from manyhands.costs import ComputeConditions, LayerSize, TensorSize
    from manyhands.job import Job
    from manyhands.placements.bound import Bound
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits

_LINE = re.compile(r"\s*([\w.]+)\s+on\s+(\d+(?:\s*,\s*\d+)*)\s*")


@dataclass(frozen=True, repr=False)
class Place(Placement):
    """Compute each module on the workers named for it; independent branches run in parallel.

    y = m(x) is computed by m's worker, which holds m's parameters and broadcasts y; in the backward
    pass it broadcasts the gradient of x. A module on several workers is computed by them in turn:
    its first call by the first worker, and so on. Each of them holds a copy, and their gradients
    are summed. Modules that are not placed are computed by every worker. All workers get the same
    samples.

    Use it to put branches or layers of a model on chosen devices: because they do not fit on one,
    or because two branches can be computed at the same time.

    In Python also `Place({"encoder": (0, 1), "merge": 2})`.

    Example: `place(modules=["encoder on 0, 1", "merge on 2"])`

    Paper: Dean et al., Large Scale Distributed Deep Networks, NIPS 2012 (model parallelism).
    """

    name: ClassVar[str] = "place"
    support: ClassVar[Literal["beta"]] = "beta"
    lacks: ClassVar[dict[str, str]] = {
        "codec": "activations are exchanged, and every one is needed whole"
    }

    modules: tuple[str, ...] = ()
    """The worker or workers of each module: "encoder on 0, 1"."""

    def __post_init__(self) -> None:
        if isinstance(self.modules, Mapping):
            lines = []
            for module, workers in self.modules.items():
                several = (workers,) if isinstance(workers, int) else tuple(workers)
                lines.append(f"{module} on {', '.join(str(worker) for worker in several)}")
            object.__setattr__(self, "modules", tuple(lines))
        names = list(self.workers)
        for name in names:
            inside = [one for one in names if one.startswith(f"{name}.")]
            if inside:
                raise ValueError(
                    f"{inside[0]} is a part of {name}, which is placed as a whole: name only one "
                    "of them"
                )

    @property
    def workers(self) -> dict[str, tuple[int, ...]]:
        """By module, the ranks that compute it."""
        found: dict[str, tuple[int, ...]] = {}
        for line in self.modules:
            match = _LINE.fullmatch(line)
            if not match:
                raise ValueError(f"expected text such as 'encoder on 0, 1', got {line!r}")
            workers = tuple(int(worker) for worker in match[2].split(","))
            if match[1] in found or len(set(workers)) < len(workers):
                raise ValueError(f"{line!r} names a module or a worker twice: name each once")
            found[match[1]] = workers
        return found

    def check(self, workers: int) -> None:
        """Raise ValueError unless the number of workers is that of the named ones."""
        super().check(workers)
        named = {worker for several in self.workers.values() for worker in several}
        if not named:
            raise ValueError(f'{self} names no modules: write place(["encoder on 0", …])')
        if named != set(range(workers)):
            idle = sorted(set(range(workers)) - named)
            fix = f"worker {idle[0]} has nothing to do" if idle else f"use {max(named) + 1} workers"
            raise ValueError(f"{self} does not fit {workers} workers: {fix}")

    def check_job(self, job: Job, workers: int) -> None:
        """Raise ValueError if the model lacks a named module, or modules share parameters."""
        from manyhands.parameters.initial.deferred import on_meta  # noqa: PLC0415 - torch is lazy
        from manyhands.placements.model.tied_parameters import check_owners  # noqa: PLC0415
        from manyhands.placements.worker.placed import check_names  # noqa: PLC0415

        super().check_job(job, workers)
        try:
            model = on_meta(job.model)
        except Exception:  # noqa: BLE001 - not every model can be created on the meta device
            return
        check_names(model, self.workers)
        check_owners(model, self.workers)

    def distinct_ranks(self, workers: int) -> Sequence[int]:
        """All ranks: each has its own modules."""
        return range(workers)

    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """This worker's modules, and proxies of the others."""
        from manyhands.placements.worker.placed import Placed  # noqa: PLC0415 - torch is lazy

        return Placed(job, group, device, waits, self.workers)

    def forecast(
        self, parameters: Sequence[TensorSize], workers: int, layers: Sequence[LayerSize] = ()
    ) -> Forecast:
        """Broadcasts of every placed module's outputs and of the gradients of its inputs.

        Modules on several workers add an allreduce of their gradients. The memory is that of the
        worker with the most parameters.
        """
        self.check(workers)
        check_layers(self, layers, "placed")
        calls = [layer for layer in layers if layer.role == "placed"]
        there = [Collective("broadcast", layer.outputs) for layer in calls]
        back = [Collective("broadcast", layer.inputs) for layer in reversed(calls) if layer.learns]
        held = dict.fromkeys(range(workers), 0)
        sums = []
        for module, several in self.workers.items():
            mine = [one for one in parameters if one.name.startswith(f"{module}.")]
            for worker in several:
                held[worker] += sum(one.size * (2 if one.trained else 1) for one in mine)
            if len(several) > 1:
                size = sum(one.size for one in mine if one.trained)
                sums.append(Collective("allreduce", size, len(several)))
        return Forecast(start=(), step=(*there, *back, *sums), memory=max(held.values()))

    def forecast_job(self, job: Job, workers: int) -> Forecast:
        """As `forecast`, with the sizes of placed modules inspected on the meta device."""
        from manyhands.placements.forecasts.layer_sizes import sizes_and_layers  # noqa: PLC0415 - torch is lazy

        self.check(workers)
        parameters, layers = sizes_and_layers(job, 1, dict.fromkeys(self.workers, "placed"))
        return self.forecast(parameters, workers, layers)

    def program(self, job: Job, workers: int, conditions: ComputeConditions = PLAIN) -> StepProgram:
        """Each call on its worker, when what it needs has arrived; then results go to all.

        A call takes a share of the time by its multiplications. What is not placed is computed by
        every worker, between the forward and the backward pass.
        """
        del conditions
        from manyhands.placements.forecasts.layer_sizes import sizes_and_layers  # noqa: PLC0415 - torch is lazy
        from manyhands.placements.forecasts.placed_calls import placed_calls  # noqa: PLC0415

        self.check(workers)
        calls, rest = placed_calls(job, self.workers)
        parameters, _ = sizes_and_layers(job, 1, {})
        summed = []
        for module, several in self.workers.items():
            if len(several) > 1:
                mine = [one for one in parameters if one.name.startswith(f"{module}.")]
                summed.append((several, sum(one.size for one in mine if one.trained)))
        return placed_program(calls, rest, self.workers, summed, workers)
