"""Calls of placed modules: their work, their sizes, and which of them need each other's results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from manyhands.parameters.initial.deferred import on_meta
from manyhands.placements.model.sample_batch import example

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from manyhands.job import Job


@dataclass(frozen=True)
class PlacedCall:
    """A call of a placed module in the forward pass of a batch."""

    module: str
    inputs: int
    """Bytes."""
    outputs: int
    """Bytes."""
    learns: bool
    """Whether a gradient flows back through its inputs."""
    work: float
    """Its multiplications."""
    needs: tuple[int, ...]
    """Numbers of the earlier calls whose outputs it needs."""


def placed_calls(job: Job, modules: Iterable[str]) -> tuple[list[PlacedCall], float]:
    """The calls of these modules for a global batch, in order, and the work outside of them.

    Computed on the meta device. A call needs another one if there is a path between the two in the
    graph of gradients.
    """
    model: nn.Module = on_meta(job.model)
    one = example(job, 1)
    inputs = torch.empty(job.batch_sizes.at(0), *one.shape[1:], dtype=one.dtype, device="meta")
    counter = FlopCounterMode(display=False)
    calls: list[PlacedCall] = []
    made: list[Any] = []
    begun: list[int] = []

    def note(name: str, given: tuple[Any, ...], came: torch.Tensor) -> None:
        before = _before(given[0].grad_fn)
        needs = tuple(number for number, node in enumerate(made) if node in before)
        work = float(counter.get_total_flops() - begun.pop())
        learns = given[0].requires_grad
        calls.append(PlacedCall(name, given[0].nbytes, came.nbytes, learns, work, needs))
        made.append(came.grad_fn)

    for name in modules:
        module = model.get_submodule(name)
        module.register_forward_pre_hook(lambda *_: begun.append(counter.get_total_flops()))
        module.register_forward_hook(lambda _, given, came, name=name: note(name, given, came))
    with counter:
        model(inputs)
    rest = float(counter.get_total_flops()) - sum(call.work for call in calls)
    return calls, rest


def _before(node: Any) -> set[Any]:
    """A node of the graph of gradients, and all that its value was computed from."""
    found: set[Any] = set()
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current is not None and current not in found:
            found.add(current)
            waiting += [following for following, _ in current.next_functions]
    return found
