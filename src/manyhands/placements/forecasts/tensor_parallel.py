"""Forecast of tensor parallelism: collectives of split layers, and sizes of their parts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from manyhands.costs import Collective

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from manyhands.costs import LayerSize, TensorSize


def split_collectives(layers: Sequence[LayerSize], ways: int) -> list[Collective]:
    """The collectives of split layers, forward and backward."""
    step: list[Collective] = []
    for layer in layers:
        if layer.role in ("row", "table"):
            step.append(Collective("allreduce", layer.outputs, ways))
        elif layer.role == "logits":
            each = -(-layer.width // ways)
            padded = layer.outputs // layer.width * each * ways
            step.append(Collective("all_gather", padded, ways))
    back = [one for one in reversed(layers) if one.role in ("column", "logits") and one.learns]
    return step + [Collective("allreduce", layer.inputs, ways) for layer in back]


def part_of(tensor: TensorSize, roles: Mapping[str, str], ways: int, place: int) -> TensorSize:
    """The size of one worker's part of a parameter; the first workers have the largest parts."""
    layer, _, kind = tensor.name.rpartition(".")
    role = roles.get(layer)
    if role in ("column", "beside", "logits", "table"):
        each = -(-tensor.rows // ways)
        rows = max(0, min(each, tensor.rows - place * each))
        return replace(tensor, rows=max(1, rows), size=tensor.size // tensor.rows * rows)
    if role == "row" and kind == "weight":
        return replace(tensor, size=tensor.size // ways)
    return tensor
