"""Modules on workers that one chooses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.costs import Collective, Forecast
from manyhands.placements.placement import Placement, check_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from manyhands.costs import LayerSize, TensorSize
    from manyhands.job import Job
    from manyhands.placements.bound import Bound
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits

_LINE = re.compile(r"\s*([\w.]+)\s+on\s+(\d+(?:\s*,\s*\d+)*)\s*")


@dataclass(frozen=True, repr=False)
class Place(Placement):
    """Compute each module where it is said to be; branches that do not meet run side by side.

    y = m(x) is computed by m's worker, who holds m's parameters and tells the others y; on the way
    back it tells them the gradient of x. A module on several workers is computed by them in turn,
    its first call by the first, and so on; each holds a copy, and their gradients are summed. What
    is not placed is computed by everybody. All workers are given the same samples.

    Use it when a model's branches or layers are to lie on certain devices: because they do not fit
    on one, or because two branches can be computed at once.

    In Python also `Place({"encoder": (0, 1), "merge": 2})`.

    Example: `place(modules=["encoder on 0, 1", "merge on 2"])`

    Paper: Dean et al., Large Scale Distributed Deep Networks, NIPS 2012 (model parallelism).
    """

    name: ClassVar[str] = "place"
    support: ClassVar[Literal["beta"]] = "beta"

    modules: tuple[str, ...] = ()
    """Which module is on which worker, or workers: "encoder on 0, 1"."""

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
                raise ValueError(f"{inside[0]} lies in {name}, which is placed as a whole already")

    @property
    def workers(self) -> dict[str, tuple[int, ...]]:
        """By module, who computes it."""
        found: dict[str, tuple[int, ...]] = {}
        for line in self.modules:
            match = _LINE.fullmatch(line)
            if not match:
                raise ValueError(f"{line!r} places nothing; write it as in 'encoder on 0, 1'")
            workers = tuple(int(worker) for worker in match[2].split(","))
            if match[1] in found or len(set(workers)) < len(workers):
                raise ValueError(f"{line!r} names a module or a worker for the second time")
            found[match[1]] = workers
        return found

    def check(self, workers: int) -> None:
        """As many workers as are named."""
        super().check(workers)
        named = {worker for several in self.workers.values() for worker in several}
        if not named:
            raise ValueError(f'{self} places nothing; name modules: place(["encoder on 0", …])')
        if named != set(range(workers)):
            idle = sorted(set(range(workers)) - named)
            fix = f"worker {idle[0]} has nothing to do" if idle else f"use {max(named) + 1} workers"
            raise ValueError(f"{self} does not fit {workers} workers: {fix}")

    def check_job(self, job: Job, workers: int) -> None:  # noqa: ARG002 - the contract
        """The model must have the modules that are named, and they must be separable."""
        from manyhands.parameters.initial.deferred import on_meta  # noqa: PLC0415 - torch is lazy
        from manyhands.placements.model.tied_parameters import check_owners  # noqa: PLC0415
        from manyhands.placements.worker.placed import check_names  # noqa: PLC0415

        try:
            model = on_meta(job.model)
        except Exception:  # noqa: BLE001 - not every model can be made without its numbers
            return
        check_names(model, self.workers)
        check_owners(model, self.workers)

    def unlike(self, workers: int) -> Sequence[int]:
        """Each has modules of its own."""
        return range(workers)

    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """The modules that are this worker's, and what stands for the others."""
        from manyhands.placements.worker.placed import Placed  # noqa: PLC0415 - torch is lazy

        return Placed(job, group, device, waits, self.workers)

    def forecast(
        self, parameters: Sequence[TensorSize], workers: int, layers: Sequence[LayerSize] = ()
    ) -> Forecast:
        """Every placed module's outputs are told, and the gradients of its inputs; copies add up.

        The memory is that of the worker that holds most.
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
        """What goes through the modules that are placed is looked at."""
        from manyhands.placements.forecasts.layer_sizes import sizes_and_layers  # noqa: PLC0415 - torch is lazy

        self.check(workers)
        parameters, layers = sizes_and_layers(job, 1, dict.fromkeys(self.workers, "placed"))
        return self.forecast(parameters, workers, layers)
