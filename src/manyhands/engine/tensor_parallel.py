"""Tensor parallelism on DTensor: layers split among workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch
    from torch.distributed.device_mesh import DeviceMesh


def split(
    model: nn.Module,
    mesh: DeviceMesh,
    *,
    columns: Iterable[Sequence[str]],
    rows: Iterable[str],
    tables: Iterable[str],
    gathered: Iterable[str],
) -> None:
    """Split layers of a model, by name, over a mesh with one axis.

    Args:
        model: the model, whose parameters become DTensors.
        mesh: the workers.
        columns: linear layers split by outputs, grouped by their input: its gradient is then
            summed over the workers once.
        rows: linear layers split by inputs; their outputs are summed over the workers.
        tables: embeddings split by rows; their outputs are summed, too.
        gathered: linear layers split by outputs, which are gathered.
    """
    styles: dict[str, ParallelStyle] = {}
    for together in columns:
        once = _Once(mesh, len(together))
        for name in together:
            styles[name] = ColwiseParallel()
            model.get_submodule(name).register_forward_pre_hook(once)
    styles |= {name: RowwiseParallel() for name in rows}
    styles |= {name: RowwiseParallel(input_layouts=Replicate()) for name in tables}
    styles |= {name: ColwiseParallel(output_layouts=Replicate()) for name in gathered}
    # No source: every worker has all values here, or none has values yet.
    parallelize_module(model, mesh, styles, src_data_rank=None)


def divide_layers(
    model: nn.Module, mesh: DeviceMesh, *, columns: Iterable[str], rows: Iterable[str]
) -> None:
    """Reduce linear layers, by name, to each worker's part, without changing their forward.

    Args:
        model: the model, whose parameters are replaced by their parts.
        mesh: the workers.
        columns: layers of which a worker keeps some of the outputs.
        rows: layers of which it keeps some of the inputs, and the whole bias.
    """
    for name in columns:
        layer = model.get_submodule(name)
        for one in ("weight", "bias"):
            _divide(layer, one, mesh, Shard(0))
    for name in rows:
        _divide(model.get_submodule(name), "weight", mesh, Shard(1))


def _divide(layer: nn.Module, name: str, mesh: DeviceMesh, how: Shard) -> None:
    whole = getattr(layer, name)
    if whole is not None:
        laid = distribute_tensor(whole.detach(), mesh, [how], src_data_rank=None)
        setattr(layer, name, nn.Parameter(laid, requires_grad=whole.requires_grad))


def ignore_in_ddp(model: nn.Module, names: list[str]) -> None:
    """Make DistributedDataParallel ignore these parameters."""
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)  # type: ignore[no-untyped-call]


class _Once:
    """Marks an input as replicated, once for all layers that share it."""

    def __init__(self, mesh: DeviceMesh, layers: int) -> None:
        self._mesh = mesh
        self._layers = layers
        self._calls = 0
        self._given: torch.Tensor | None = None
        self._told: torch.Tensor | None = None

    def __call__(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._given is not inputs[0]:
            self._given = inputs[0]
            self._told = DTensor.from_local(inputs[0], self._mesh, [Replicate()], run_check=False)
        told = self._told
        self._calls += 1
        if self._calls % self._layers == 0:
            # This was the last layer; an activation must not be kept longer than needed.
            self._given = self._told = None
        return (told, *inputs[1:])
