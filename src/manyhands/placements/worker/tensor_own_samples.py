"""Worker of `tensor(samples=own)`: split layers between replicated ones.

Convolutions have few parameters and large activations, fully connected layers the reverse. So
convolutions are data-parallel: every worker has them all and computes its own samples. Before split
layers, the samples of all workers are gathered, each worker computes its part of the layers for all
of them, and the sums are scattered to the workers that own the samples.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from manyhands.engine.fake_tensors import is_fake
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
    """A replica of the layers that are not split, and a part of those that are.

    Args:
        job: the job to train.
        group: the workers, all of which share the split layers.
        device: the device of this worker's part.
        waits: see `WholeModel`.
        wrap: averages the gradients of layers that are not split; gets the names of the others.
        mesh: a mesh with the axis "tensor".
        plan: returns the layers of a model that are split.
    """

    whole_gradient = False

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
            together = _SharedInput(self._samples, len(pair.columns))
            for name in pair.columns:
                column = model.get_submodule(name)
                column.forward = together.column(column)
            row = model.get_submodule(pair.row)
            row.forward = self._samples.row(row)

    def _wrap(
        self, model: nn.Module, wrap: Callable[[nn.Module, list[str]], nn.Module]
    ) -> nn.Module:
        # Under all of its names: DDP may know a tied parameter by any of them.
        named = model.named_parameters(remove_duplicate=False)
        split = {name: one for name, one in named if own(one) is not one}
        self._split = list(dict.fromkeys(split.values()))
        return wrap(model, list(split))

    def gradient(self, inputs: Any, targets: Any, weight: float, samples: int) -> torch.Tensor:
        """The gradient; those of split layers are sums over all samples, and are averaged here."""
        self._samples.count(len(inputs))
        loss = super().gradient(inputs, targets, weight, samples)
        for one in self._split:
            if one.grad is not None:
                own(one.grad).div_(self.replicas)
        return loss

    def outputs(self, inputs: Any) -> Any:
        """The outputs for this worker's samples; computed together with all other workers."""
        self._samples.count(len(inputs))
        return super().outputs(inputs)

    def state(self) -> State:
        """The state, with split layers gathered."""
        return sharded_state(self.model)


class _Samples:
    """Gathers the samples of all workers, and scatters the results.

    Shares differ in size, so all are padded to the largest; results for padding are discarded.
    """

    def __init__(self, handle: WatchedGroup, device: torch.device) -> None:
        self._handle = handle
        self._device = device
        self._own = self._most = 0

    def count(self, samples: int) -> None:
        """Find the size of the largest share by an allreduce."""
        counts = self._handle.gather_rows(torch.tensor([samples], device=self._device))
        self._own, self._most = samples, samples if is_fake() else int(counts.max())

    def gather_samples(self, tensor: torch.Tensor) -> torch.Tensor:
        """The samples of all workers, each share padded."""
        gathered: torch.Tensor = _Gather.apply(self._padded(tensor), self._handle)  # type: ignore[no-untyped-call]
        return gathered

    def _padded(self, tensor: torch.Tensor) -> torch.Tensor:
        if len(tensor) != self._own:
            raise ValueError(
                f"a split layer got an input of shape {tuple(tensor.shape)} in a batch whose "
                f"inputs have {self._own} rows: tensor(samples=own) gathers rows of samples. Use "
                "tensor() for a model with other activations"
            )
        missing = self._most - len(tensor)
        return functional.pad(tensor, [0, 0] * (tensor.dim() - 1) + [0, missing])

    def row(self, layer: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        """A row-parallel layer, for the samples of all workers."""

        def compute(inputs: torch.Tensor) -> torch.Tensor:
            part = functional.linear(inputs, own(layer.weight))
            summed: torch.Tensor = _SumBack.apply(part, self._handle)  # type: ignore[no-untyped-call]
            mine = summed[: self._own]
            return mine if layer.bias is None else mine + layer.bias

        return compute


class _SharedInput:
    """Gathers the common input of several layers once."""

    def __init__(self, samples: _Samples, layers: int) -> None:
        self._samples = samples
        self._layers = layers
        self._calls = 0
        self._given: torch.Tensor | None = None
        self._all: torch.Tensor | None = None

    def column(self, layer: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        """A column-parallel layer, for the samples of all workers."""

        def compute(inputs: torch.Tensor) -> torch.Tensor:
            if self._given is not inputs or self._all is None:
                self._given, self._all = inputs, self._samples.gather_samples(inputs)
            all_samples = self._all
            self._calls += 1
            if self._calls % self._layers == 0:
                # This was the last layer that needs it, and it is large.
                self._given = self._all = None
            bias = None if layer.bias is None else own(layer.bias)
            return functional.linear(all_samples, own(layer.weight), bias)

        return compute


class _Gather(torch.autograd.Function):
    """All_gather of rows; backward, a reduce_scatter of their gradients."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, handle: WatchedGroup) -> torch.Tensor:
        ctx.handle = handle
        return handle.gather_rows(own)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return ctx.handle.scatter_sums(gradient), None


class _SumBack(torch.autograd.Function):
    """Reduce_scatter of rows; backward, an all_gather of their gradients."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, handle: WatchedGroup) -> torch.Tensor:
        ctx.handle = handle
        return handle.scatter_sums(part)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return ctx.handle.gather_rows(gradient), None
