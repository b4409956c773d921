"""Messages between the workers of a pipeline, from their schedule and the sizes of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.costs import Collective
from manyhands.schedules import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from manyhands.costs import LayerSize
    from manyhands.placements.model.tensor_plan import TensorPlan
    from manyhands.schedules import Table

    Find = Callable[[nn.Module], TensorPlan]


_LOSS = 8
"""Bytes of the loss, which the last worker sends to the others."""
LOSS_AND_WEIGHT = 16
"""The same where updates wait for the weights of all workers."""


def messages_of(
    table: Table, layers: Sequence[LayerSize], *, weighted: bool = True
) -> list[list[Collective]]:
    """By worker, the messages that it sends in a step; the last worker also sends the loss.

    Args:
        table: the schedule.
        layers: the calls of every stage.
        weighted: whether the weight of the loss is sent, too.
    """
    calls = stage_outputs(layers)
    sizes = [*map(list, messages(table, lambda stage, microbatch: calls[stage][microbatch]))]
    sizes[-1] += [LOSS_AND_WEIGHT if weighted else _LOSS] * (len(sizes) - 1)
    return [[Collective("send", size, workers=2) for size in own] for own in sizes]


def stage_outputs(layers: Sequence[LayerSize]) -> dict[int, list[int]]:
    """By stage, the bytes of its outputs for each microbatch; the last stage has none."""
    calls: dict[int, list[int]] = {}
    for call in layers:
        if call.role == "stage":
            calls.setdefault(int(call.name), []).append(call.outputs)
    return calls
