"""Worker of `single` and `allreduce`: a whole replica of the model."""

from __future__ import annotations

import contextlib
import gc
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.nn.parallel import DistributedDataParallel

from manyhands.engine.fake_tensors import is_fake
from manyhands.files.checkpoint import State
from manyhands.job.optimizers import TrainedParameters
from manyhands.parameters.gradients import CalledModel, ObjectiveModule, backward, build
from manyhands.parameters.optional.compilation import compile_in_place
from manyhands.placements.bound import Bound
from manyhands.placements.model.buffers import average_buffers, untouched
from manyhands.placements.model.materialize import aliases, make_model
from manyhands.placements.model.sync_batchnorm import synchronise
from manyhands.placements.worker.averaged_replica import AveragedReplica, unused_parameters
from manyhands.placements.worker.shared_ddp import SharedDDP

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    import torch
    from torch import nn

    from manyhands.codecs.kernels.finite import NotFinite
    from manyhands.job import Job
    from manyhands.placements.held import HeldTensor
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


class WholeModel(Bound):
    """A replica on every worker; the wrapped module averages gradients over all workers.

    Args:
        job: the job to train.
        group: the workers, each with a replica.
        device: the device of this worker's replica.
        waits: records when this worker's own gradients are ready.
        wrap: wraps the model, for instance in DDP.
        compares_every: steps between two comparisons of the replicas; 0 for none.
    """

    whole_gradient = True

    def __init__(
        self,
        job: Job,
        group: Group,
        device: torch.device,
        waits: Waits,
        wrap: Callable[[nn.Module], nn.Module],
        compares_every: int = 0,
    ) -> None:
        self.compares_every = compares_every
        self.model = self._make(job, device)
        self.optimizer = self._make_optimizer(job)
        self._synchronised = [] if is_fake() else synchronise(self.model, group, waits)
        if not is_fake():
            compile_in_place(job, self.model, self._synchronised)
        self.replica, self.replicas = group.rank, group.size
        self._device = device
        self._group = group
        self._trained_by = TrainedParameters(self.model, self.optimizer)
        self._computed = [
            self._prepare(one, number if job.objective_names else None, waits, wrap)
            for number, one in enumerate(job.one_by_one)
        ]
        if job.objective_names:
            self._trained_by.choose(None)
        self._jobs = [one.job for one in self._computed]
        self._select(self._computed[0])

    def _prepare(
        self,
        job: Job,
        objective: int | None,
        waits: Waits,
        wrap: Callable[[nn.Module], nn.Module],
    ) -> _Computed:
        """Wrap the model for one objective, which averages the gradients of its parameters."""
        if objective is not None:
            self._trained_by.choose(objective)
        if job.objective is None:
            module = wrap(self.model)
            called = CalledModel(self.model, module)
        else:
            module = wrap(ObjectiveModule(self.model))
            called = CalledModel(self.model, self.model, module)
        trained = {
            name: parameter
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }
        # A replica that is averaged after the backward pass knows by itself when that has ended.
        ends = isinstance(module, AveragedReplica)
        return _Computed(
            job, module, called, trained, None if ends else _LastGradient(trained, waits)
        )

    def regroup(self, group: Group, waits: Waits, wrap: Callable[[nn.Module], nn.Module]) -> None:
        """Average gradients over another group from now on; the replicas in it must be equal.

        The wrapped module is made anew: that of another worker may have filled its buckets in
        another order. Gradients of a step that was interrupted are discarded.

        Args:
            group: the workers, each with a replica.
            waits: records when this worker's own gradients are ready.
            wrap: wraps the model, as for the first group.
        """
        # Nothing of it is there any more if another group was lost while it was made.
        while self._computed:
            self._computed.pop().end()
        for name in ("module", "_called", "_trained", "_last"):
            vars(self).pop(name, None)
        # Gradients may be parts of the former module's buckets.
        self.model.zero_grad(set_to_none=True)
        # The hooks of a module's reducer end with it, and it may be part of a cycle.
        gc.collect()
        self._group = group
        self.replica, self.replicas = group.rank, group.size
        if self._synchronised:
            own = group if group.size == 1 else group.part("batchnorm", range(group.size))
            for layer in self._synchronised:
                layer.group = own
        self._computed = [self._prepare(job, None, waits, wrap) for job in self._jobs]
        self._select(self._computed[0])

    def _select(self, computed: _Computed) -> None:
        self._job, self.module, self._called = computed.job, computed.module, computed.called
        self._trained, self._last = computed.trained, computed.last

    def choose(self, objective: int) -> None:
        """Compute and step another objective of the job from now on."""
        super().choose(objective)
        self._trained_by.choose(objective)
        self._select(self._computed[objective])

    def _make(self, job: Job, device: torch.device) -> nn.Module:
        return make_model(partial(build, job), device)

    def _make_optimizer(self, job: Job) -> torch.optim.Optimizer:
        return job.make_optimizer(self.model)

    def gradient(self, inputs: Any, targets: Any, weight: float, samples: int) -> torch.Tensor:
        """Compute the gradient; the wrapped module averages it over workers."""
        for layer in self._synchronised:
            layer.counts = weight != 0
        with untouched(self.model, when=not weight), self._reducing():
            loss = backward(
                *(self._job, self._device, self._called, inputs, targets, samples, weight),
                self._more_to_come,
            )
        if self._last is not None and not self._last.settled:
            self._last.settle()
            self._check_unused()
        return loss

    def take_refused(self) -> NotFinite:
        """What this worker's gradient had for which it sent zeros, under a codec."""
        found: NotFinite = ""
        for computed in self._computed:
            take: Callable[[], NotFinite] | None = getattr(computed.module, "take_refused", None)
            found = (take() if take is not None else "") or found
        return found

    @property
    def sums(self) -> str:
        """Where gradients are summed, if it is not in connections of all workers."""
        return self.module.sums if isinstance(self.module, AveragedReplica | SharedDDP) else ""

    def take_finite(self) -> bool:
        """Whether the averaged gradient is known to be finite, because it was looked at."""
        if not isinstance(self.module, AveragedReplica | SharedDDP):
            return False
        return self.module.take_finite()

    def rescale(self, factor: float) -> None:
        """As in `Bound`; what was finite may be too large afterwards."""
        self.take_finite()
        super().rescale(factor)

    def local_gradients(
        self, inputs: Any, targets: Any, weight: float, samples: int
    ) -> list[torch.Tensor]:
        """This worker's own gradients, computed again and not averaged; buffers stay."""
        self.model.zero_grad()
        with untouched(self.model, when=True), self._more_to_come():
            backward(self._job, self._device, self._called, inputs, targets, samples, weight)
        return self.own_gradients()

    def _more_to_come(self) -> AbstractContextManager[object]:
        """Context in which gradients are accumulated and not averaged yet (`no_sync`)."""
        quiet: Callable[[], AbstractContextManager[object]]
        quiet = getattr(self.module, "no_sync", contextlib.nullcontext)
        return quiet()

    def _reducing(self) -> AbstractContextManager[object]:
        """Context of a step's backward passes, for a reduction that DDP does not do itself."""
        reducing: Callable[[], AbstractContextManager[object]]
        reducing = getattr(self.module, "reducing", contextlib.nullcontext)
        return reducing()

    def _check_unused(self) -> None:
        if self.replicas == 1 or getattr(self.module, "find_unused_parameters", False):
            return
        unused = [name for name, tensor in self._trained.items() if tensor.grad is None]
        if unused:
            raise unused_parameters(unused)

    def outputs(self, inputs: Any) -> Any:
        """The outputs of this worker's replica, without communication."""
        return self.model(inputs)

    def average_buffers(self) -> None:
        """Average over all workers."""
        average_buffers(self.model, self._group)

    def repeat_first_step(self, inputs: Any, targets: Any, samples: int) -> None:
        """DDP reduces other buckets in its first step; sums of two are the same in any order."""
        if self._group.size < 3 or type(self.module) is not DistributedDataParallel:
            return
        for objective in range(len(self._computed)):
            if self._job.objective_names or len(self._computed) > 1:
                self.choose(objective)
            self.gradient(inputs, targets, 1.0, samples)
            self.model.zero_grad()

    def held(self) -> list[HeldTensor]:
        """All tensors; every worker stores some of them."""
        from manyhands.placements.held import held_by_all  # noqa: PLC0415 - loads DTensor

        named = self.model.state_dict(keep_vars=True)
        return held_by_all(named, aliases(self.model), self._group.rank, self._group.size)

    def own_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """What a codec has not sent yet."""
        unsent = getattr(self.module, "unsent", None)
        return ({} if unsent is None else unsent()), {}

    def residuals(self) -> dict[str, torch.Tensor]:
        """What a codec has not sent yet."""
        found: Callable[[], dict[str, torch.Tensor]] | None
        found = getattr(self.module, "residuals", None)
        return {} if found is None else found()

    def carry_over(self, residuals: Mapping[str, torch.Tensor], workers: int) -> None:
        """Send later what was not sent in another group; a replica alone sends nothing."""
        carry = getattr(self.module, "carry_over", None)
        if carry is not None:
            carry(residuals, workers)

    def unsent_norm(self) -> float:
        """The norm of what codecs have not sent yet, of all objectives."""
        norms = (getattr(one.module, "unsent_norm", None) for one in self._computed)
        return math.hypot(*(norm() for norm in norms if norm is not None))

    def load_own_state(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:  # noqa: ARG002 - as in `Bound`
        """Send later what a codec has not sent yet."""
        carry = getattr(self.module, "carry", None)
        if carry is not None and tensors:
            carry(tensors)

    def state(self) -> State:
        """The state of this worker's replica: all replicas are equal."""
        return State.of(self.model)


@dataclass(frozen=True, eq=False)
class _Computed:
    """How one objective is computed."""

    job: Job
    """The job with this objective alone."""
    module: nn.Module
    """The wrapped model, or the wrapped computation of an objective."""
    called: CalledModel
    trained: dict[str, torch.nn.Parameter]
    """The parameters that have gradients."""
    last: _LastGradient | None
    """None if the module records itself when its gradients are ready."""

    def end(self) -> None:
        """Remove hooks, and free what the module shares with other workers."""
        if self.last is not None:
            self.last.remove()
        if isinstance(self.module, AveragedReplica):
            self.module.close()


class _LastGradient:
    """Records when a worker's own gradients are ready: from then on it waits for other workers.

    The first step finds the parameter whose gradient is computed last; afterwards only that one
    has a hook, so the cost does not grow with the model. What is exchanged before that gradient is
    hidden by the backward pass and costs no time (`docs/decisions/0005-exposed-communication.md`).
    On a GPU this is the time at which the kernel was launched, not when it ended.
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

    def remove(self) -> None:
        """Remove all hooks."""
        for handle in self._handles.values():
            handle.remove()

    def settle(self) -> None:
        """Keep only the hook of the gradient that was computed last."""
        self.settled = True
        for name, handle in self._handles.items():
            if name != self._last:
                handle.remove()
