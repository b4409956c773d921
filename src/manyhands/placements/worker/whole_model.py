"""A whole copy of the model on a worker: what `single` and `allreduce` train."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from manyhands.files.checkpoint import State
from manyhands.parameters.gradients import backward, build
from manyhands.placements.bound import Bound
from manyhands.placements.model.buffers import average_buffers, untouched
from manyhands.placements.model.materialize import make_whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import torch
    from torch import nn

    from manyhands.job import Job
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


class WholeModel(Bound):
    """A copy of the model on every worker, whose gradients the wrapped module makes the mean.

    Args:
        job: what is trained.
        group: the workers, each with a copy.
        device: where this one's lies.
        waits: told when this worker's own gradients are ready; the trainer knows when all are.
        wrap: makes the module that is called in the model's place.
    """

    def __init__(
        self,
        job: Job,
        group: Group,
        device: torch.device,
        waits: Waits,
        wrap: Callable[[nn.Module], nn.Module],
    ) -> None:
        self.model = self._make(job, device)
        self.optimizer = self._make_optimizer(job)
        self.module = wrap(self.model)
        self.replica, self.replicas = group.rank, group.size
        self._job = job
        self._device = device
        self._group = group
        self._trained = {
            name: parameter
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }
        self._last = _LastGradient(self._trained, waits)

    def _make(self, job: Job, device: torch.device) -> nn.Module:
        return make_whole(partial(build, job), device)

    def _make_optimizer(self, job: Job) -> torch.optim.Optimizer:
        return job.optimizer(self.model)

    def gradient(self, inputs: Any, targets: Any, weight: float) -> torch.Tensor:
        """The engine averages over workers while the backward pass goes on."""
        with untouched(self.model, when=not weight):
            loss = backward(
                self._job, self._device, self.module, inputs, targets, weight, self._more_to_come
            )
        if not self._last.settled:
            self._last.settle()
            self._check_unused()
        return loss

    def _more_to_come(self) -> AbstractContextManager[object]:
        """Gradients of a part of a batch are not averaged: the others follow."""
        quiet: Callable[[], AbstractContextManager[object]]
        quiet = getattr(self.module, "no_sync", contextlib.nullcontext)
        return quiet()

    def _check_unused(self) -> None:
        if self.replicas == 1 or getattr(self.module, "find_unused_parameters", False):
            return
        unused = [name for name, tensor in self._trained.items() if tensor.grad is None]
        if unused:
            raise RuntimeError(
                f"the loss does not depend on {len(unused)} parameters: {', '.join(unused[:8])}"
                f"{', …' if len(unused) > 8 else ''}; freeze them with requires_grad_(False), or "
                "use allreduce(find_unused=true) if only some steps leave them out"
            )

    def outputs(self, inputs: Any) -> Any:
        """The copy's own answer: nobody else is asked."""
        return self.model(inputs)

    def average_buffers(self) -> None:
        """Over all workers."""
        average_buffers(self.model, self._group)

    def state(self) -> State:
        """The copy's: all are alike."""
        return State.of(self.model)


class _LastGradient:
    """Tells when a worker's own gradients are ready: from then on it waits for others.

    The first step finds out which parameter's gradient comes last; from then on only that one
    is watched, so the cost does not grow with the model. On a GPU this is when the kernel was
    launched, not when it ended.
    """

    def __init__(self, parameters: dict[str, torch.nn.Parameter], waits: Waits) -> None:
        self.settled = False
        self._last = ""
        self._waits = waits
        self._handles = {
            name: parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                self._watch(name)
            )
            for name, parameter in parameters.items()
        }

    def _watch(self, name: str) -> Callable[[torch.Tensor], None]:
        def arrived(_: torch.Tensor) -> None:
            self._last = name
            self._waits.begin()

        return arrived

    def settle(self) -> None:
        """Keep watching only the gradient that came last."""
        self.settled = True
        for name, handle in self._handles.items():
            if name != self._last:
                handle.remove()
