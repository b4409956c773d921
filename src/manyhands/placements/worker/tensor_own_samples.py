"""Split layers between replicated ones, on samples of one's own: what `tensor(samples=own)` trains.

Convolutions have few parameters and large activations, fully connected layers the reverse. So the
first are data-parallel: every worker has them all and computes its own samples. Before layers that
are split, the workers bring their samples together, each computes its part of the layers for all of
them, and the sums go back to whom the samples belong to.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from manyhands.engine.fake_tensors import is_imagined
from manyhands.engine.tensor_parallel import divide_layers
from manyhands.engine.tensors import own
from manyhands.parameters.gradients import build
from manyhands.placements.model.materialize import make_in_parts
from manyhands.placements.model.tied_parameters import keeping_ties
from manyhands.placements.worker.sharded import sharded_state
from manyhands.placements.worker.whole_model import WholeModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.engine.watched_group import WatchedGroup
    from manyhands.files.checkpoint import State
    from manyhands.job import Job
    from manyhands.placements.model.tensor_plan import TensorPlan
    from manyhands.transport.collectives import Group
    from manyhands.transport.mesh import Mesh
    from manyhands.transport.waits import Waits


class TensorOwnSamples(WholeModel):
    """A copy of what is not split, and a part of what is.

    Args:
        job: what is trained.
        group: the workers, all of which share the split layers.
        device: where this one's part lies.
        waits: see `Replica`.
        wrap: makes the gradients of what is not split the mean; it is told what to leave alone.
        mesh: with the axis "tensor".
        plan: says, for a model, which layers are split.
    """

    def __init__(
        self,
        job: Job,
        group: Group,
        device: torch.device,
        waits: Waits,
        wrap: Callable[[nn.Module, list[str]], nn.Module],
        mesh: Mesh,
        plan: Callable[[nn.Module], TensorPlan],
    ) -> None:
        self._samples = _Samples(mesh.handles["tensor"], device)
        self._mesh = mesh
        self._plan = plan
        self._split: list[nn.Parameter] = []
        super().__init__(job, group, device, waits, lambda module: self._wrap(module, wrap))

    def _make(self, job: Job, device: torch.device) -> nn.Module:
        return make_in_parts(partial(build, job), self._spread, device)

    def _spread(self, model: nn.Module) -> None:
        plan = self._plan(model)
        self.words = tuple(plan.words)
        keeping_ties(
            model,
            lambda: divide_layers(
                model,
                self._mesh.handle["tensor"],
                columns=[name for pair in plan.pairs for name in pair.columns],
                rows=[pair.row for pair in plan.pairs],
            ),
        )
        for pair in plan.pairs:
            together = _Together(self._samples, len(pair.columns))
            for name in pair.columns:
                column = model.get_submodule(name)
                column.forward = together.column(column)
            row = model.get_submodule(pair.row)
            row.forward = self._samples.row(row)

    def _wrap(
        self, model: nn.Module, wrap: Callable[[nn.Module, list[str]], nn.Module]
    ) -> nn.Module:
        # Under all of its names: the engine knows a tied parameter by any of them.
        named = model.named_parameters(remove_duplicate=False)
        split = {name: one for name, one in named if own(one) is not one}
        self._split = list(dict.fromkeys(split.values()))
        return wrap(model, list(split))

    def gradient(self, inputs: Any, targets: Any, weight: float) -> torch.Tensor:
        """Of split layers, each worker has the sum over all samples: the mean is wanted."""
        self._samples.count(len(inputs))
        loss = super().gradient(inputs, targets, weight)
        for one in self._split:
            if one.grad is not None:
                own(one.grad).div_(self.replicas)
        return loss

    def outputs(self, inputs: Any) -> Any:
        """Together with the others, whose samples are answered at the same time."""
        self._samples.count(len(inputs))
        return super().outputs(inputs)

    def state(self) -> State:
        """Split layers are gathered."""
        return sharded_state(self.model)


class _Samples:
    """How many samples each worker has, and how they are brought together and returned.

    Shares differ in size, so all are padded to the largest; what is computed for the padding goes
    nowhere.
    """

    def __init__(self, handle: WatchedGroup, device: torch.device) -> None:
        self._handle = handle
        self._device = device
        self._own = self._most = 0

    def count(self, samples: int) -> None:
        """Hear how many samples the largest share has."""
        counts = self._handle.gather_rows(torch.tensor([samples], device=self._device))
        self._own, self._most = samples, samples if is_imagined() else int(counts.max())

    def bring_together(self, tensor: torch.Tensor) -> torch.Tensor:
        """All workers' samples, each share padded."""
        gathered: torch.Tensor = _Gather.apply(self._padded(tensor), self._handle)  # type: ignore[no-untyped-call]
        return gathered

    def _padded(self, tensor: torch.Tensor) -> torch.Tensor:
        missing = self._most - len(tensor)
        return functional.pad(tensor, [0, 0] * (tensor.dim() - 1) + [0, missing])

    def row(self, layer: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        """A layer of which this worker has some of the inputs, for everybody's samples."""

        def compute(inputs: torch.Tensor) -> torch.Tensor:
            part = functional.linear(inputs, own(layer.weight))
            summed: torch.Tensor = _SumBack.apply(part, self._handle)  # type: ignore[no-untyped-call]
            mine = summed[: self._own]
            return mine if layer.bias is None else mine + layer.bias

        return compute


class _Together:
    """Brings the input of some layers together once."""

    def __init__(self, samples: _Samples, layers: int) -> None:
        self._samples = samples
        self._layers = layers
        self._calls = 0
        self._given: torch.Tensor | None = None
        self._all: torch.Tensor | None = None

    def column(self, layer: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        """A layer of which this worker has some of the outputs, for everybody's samples."""

        def compute(inputs: torch.Tensor) -> torch.Tensor:
            if self._given is not inputs or self._all is None:
                self._given, self._all = inputs, self._samples.bring_together(inputs)
            everybody = self._all
            self._calls += 1
            if self._calls % self._layers == 0:
                # Nobody else will ask, and it is large.
                self._given = self._all = None
            bias = None if layer.bias is None else own(layer.bias)
            return functional.linear(everybody, own(layer.weight), bias)

        return compute


class _Gather(torch.autograd.Function):
    """All workers' rows; backwards, the sum of what all workers have to say about one's own."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, handle: WatchedGroup) -> torch.Tensor:
        ctx.handle = handle
        return handle.gather_rows(own)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return ctx.handle.scatter_sums(gradient), None


class _SumBack(torch.autograd.Function):
    """The sum of all workers' parts of one's own rows; backwards, everybody's rows."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, handle: WatchedGroup) -> torch.Tensor:
        ctx.handle = handle
        return handle.scatter_sums(part)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return ctx.handle.gather_rows(gradient), None
