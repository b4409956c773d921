"""Layers that several workers compute side by side, on DTensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch
    from torch import nn
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
        model: whose parameters become parts of themselves.
        mesh: the workers.
        columns: linear layers split by outputs, those together that share an input: on the way
            back its gradient is then summed over the workers once.
        rows: linear layers split by inputs; their outputs are summed over the workers.
        tables: embeddings split by rows; what they give is summed, too.
        gathered: linear layers split by outputs, which are gathered.
    """
    styles: dict[str, ParallelStyle] = {}
    for together in columns:
        once = _Once(mesh)
        for name in together:
            styles[name] = ColwiseParallel()
            model.get_submodule(name).register_forward_pre_hook(once)
    styles |= {name: RowwiseParallel() for name in rows}
    styles |= {name: RowwiseParallel(input_layouts=Replicate()) for name in tables}
    styles |= {name: ColwiseParallel(output_layouts=Replicate()) for name in gathered}
    # No source: every worker has all values here, or none has any yet.
    parallelize_module(model, mesh, styles, src_data_rank=None)


class _Once:
    """Tells torch that all workers have an input, once for all layers that are given it."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        self._given: torch.Tensor | None = None
        self._told: torch.Tensor | None = None

    def __call__(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._given is not inputs[0]:
            self._given = inputs[0]
            self._told = DTensor.from_local(inputs[0], self._mesh, [Replicate()], run_check=False)
        return (self._told, *inputs[1:])
