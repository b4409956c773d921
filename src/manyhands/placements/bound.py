"""Interface between the trainer and a placement on one worker.

The trainer owns the data, the clock, the trace and the end of a run. The bound placement does what
depends on how the model is distributed: it creates the worker's part of the model, computes
gradients, steps the optimizer, computes outputs for an evaluation, and gathers the whole model for
a checkpoint. A worker may hold a whole replica, a shard of every layer, a few layers, or a part of
one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal

import torch

from manyhands.job.optimizers import parts_of
from manyhands.parameters.optional.clipping import clip_norm
from manyhands.parameters.scheduled_step import weighted_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

    from manyhands.codecs.kernels.finite import NotFinite
    from manyhands.files.checkpoint import State
    from manyhands.placements.held import HeldTensor, SteppedTensor
    from manyhands.trace import Recorder
    from manyhands.transport.collectives import Group


class Bound(ABC):
    """One worker's part of a model, trained together with the other workers' parts.

    All workers call every method at the same step, because it may run a collective.
    """

    model: nn.Module
    """The part of the model that this worker holds."""
    optimizer: torch.optim.Optimizer
    """The optimizer of the parameters that this worker updates."""
    replica: int
    """Index of the replica that this worker belongs to. All workers of one replica get the same
    samples."""
    replicas: int
    """Number of shares that a global batch is split into."""
    copies: int = 1
    """Number of groups that step independently; a global batch is divided among them first."""
    parts: int = 1
    """Number of sample-weighted means that the loss of a share is computed from."""
    speaks: bool = True
    """Whether this worker reports the samples and losses of its replica: exactly one does."""
    waiting: Literal["exchange", "wait"] = "exchange"
    """How its waits are interpreted. In a collective all workers wait for the slowest, and the rest
    is communication; in a pipeline each worker waits for its neighbour."""
    counts: float = 1.0
    """Weight of the next step; set before its gradient, for placements that update during the
    backward pass."""
    between_rounds: bool = True
    """Whether all replicas are equal, so that an evaluation or a checkpoint changes nothing."""
    ends_epoch: bool = False
    """Whether the next step is the last one of an epoch, with which a round ends."""
    steps_apart: bool = False
    """Whether the optimizer has only some of the parameters, or steps them one after another."""
    together: Group | None = None
    """The workers whose gradients are averaged in a step; None for all."""
    objective: int = 0
    """Number of the objective that is computed and stepped next, if the job has several."""
    rescales: bool = True
    """Whether gradients wait for `rescale` and `step` before they are used; False if updates are
    applied while later gradients are computed."""
    whole_gradient: bool = False
    """Whether every worker has the whole gradient after the reduction, so that all of them decide
    alike whether to step with it; otherwise they ask each other."""
    compares_every: int = 0
    """Steps between two comparisons of replicas that must be equal; 0 for none."""
    words: tuple[str, ...] = ()
    """How the model was divided among the workers, and how they sum gradients, in lines for the
    log; may be empty."""

    def record_words(self, recorder: Recorder) -> None:
        """Write to a trace how the model is divided; called by one worker of a group."""
        if self.words:
            recorder.event("divided", {str(at): line for at, line in enumerate(self.words)})

    def weigh(self, samples: int, total: int) -> float:
        """The weight of the next gradient; called before each one.

        Args:
            samples: samples of this replica's share.
            total: samples of the global batch.
        """
        return samples * self.replicas / total

    def choose(self, objective: int) -> None:
        """Compute and step another objective of the job from now on.

        Args:
            objective: its number.
        """
        self.objective = objective

    @abstractmethod
    def gradient(self, inputs: Any, targets: Any, weight: float, samples: int) -> torch.Tensor:
        """Compute the gradient, averaged over all workers that step together.

        Args:
            inputs: this replica's share of the global batch.
            targets: the targets of these inputs.
            weight: samples of this share / mean samples per share. Zero for a replica without
                samples: it computes on another replica's share, which must not change it.
            samples: samples of the share that is computed, as it was dealt.

        Returns:
            The mean loss over the share's samples, on every worker of the replica.
        """

    def rescale(self, factor: float) -> None:
        """Multiply the gradient: the weight of all samples is known only after it is computed."""
        gradients = self.own_gradients()
        torch._foreach_mul_([one for one in gradients if not one.is_sparse], factor)
        for gradient in gradients:
            if gradient.is_sparse:
                gradient.mul_(factor)

    def own_gradients(self) -> list[torch.Tensor]:
        """The gradients of this worker's parameters, or its parts of them, as plain tensors."""
        gradients = [one.grad for one in self.model.parameters() if one.grad is not None]
        if all(type(one) is torch.Tensor for one in gradients):
            return gradients
        from manyhands.engine.tensors import own  # noqa: PLC0415 - loads DTensor

        return [own(one) for one in gradients]

    def take_refused(self) -> NotFinite:
        """What this worker's gradient had for which it sent zeros, in the last step."""
        return ""

    def take_finite(self) -> bool:
        """Whether the gradient of the last step is known to have neither NaN nor infinity."""
        return False

    def local_gradients(
        self,
        inputs: Any,  # noqa: ARG002 - the contract
        targets: Any,  # noqa: ARG002
        weight: float,  # noqa: ARG002
        samples: int,  # noqa: ARG002
    ) -> list[torch.Tensor]:
        """This worker's own gradients, computed again; needed where all have the whole one."""
        return []

    def consumed(self) -> list[torch.Tensor]:
        """The parameters whose gradients a step consumes, or this worker's parts of them.

        Those in the groups of the optimizer, as the backward pass knows them. Their gradients are
        what is clipped and measured; a parameter in no group is neither.
        """
        groups = self.optimizer.param_groups
        return [parameter for group in groups for parameter in group["params"]]

    def clip(self, limit: float) -> None:
        """Clip the norm of the consumed gradients, computed over the whole model, to the limit."""
        clip(self.consumed(), limit)

    def step(self, weight: float) -> None:
        """Step the optimizer, with its learning rates multiplied by `weight`."""
        weighted_step(parts_of(self.optimizer)[self.objective], weight)
        forget_gradients(self.optimizer)

    def skip(self) -> None:
        """Take no step with the gradient that was computed, and forget it."""
        self.model.zero_grad()
        self.optimizer.zero_grad()

    def settle(self) -> None:  # noqa: B027 - most steps are complete when they return
        """Wait until the last step has changed the parameters."""

    def own_parameters(self) -> list[torch.Tensor]:
        """The parameters of this worker, or its parts of them, as tensors to change in place."""
        held = [one.detach() for one in self.model.parameters() if not one.is_meta]
        if all(type(one) is torch.Tensor for one in held):
            return held
        from manyhands.engine.tensors import own  # noqa: PLC0415 - loads DTensor

        return [own(one) for one in held]

    def changed_parameters(self) -> None:
        """Free parameters that were gathered before this worker's parts of them were changed."""
        for module in self.model.modules():
            free = getattr(module, "reshard", None)
            if callable(free):
                free()

    def applied(self) -> list[int]:
        """The staleness of every update since the last call; empty if updates are never stale."""
        return []

    def residuals(self) -> dict[str, torch.Tensor]:
        """What a codec with error feedback has not sent yet of gradients, by parameter."""
        return {}

    def carry_over(self, residuals: Mapping[str, torch.Tensor], workers: int) -> None:  # noqa: B027 - most have none
        """Send later what `residuals` returned in a group of so many workers."""

    def unsent_norm(self) -> float:
        """The norm of what a codec with error feedback has not sent yet, of this worker's share."""
        return 0.0

    @abstractmethod
    def outputs(self, inputs: Any) -> Any:
        """The model's outputs for the inputs; must be valid on workers where `speaks` is True."""

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """What an objective's call of the model computes at an evaluation, on all workers."""
        return self.model(*inputs, **options)

    @abstractmethod
    def average_buffers(self) -> None:
        """Synchronise buffers of all replicas: average floats, copy others from the first one."""

    def repeat_first_step(self, inputs: Any, targets: Any, samples: int) -> None:  # noqa: B027 - most steps are alike
        """Compute a gradient that is not used, if the first step of a run sums in another order.

        A run that continues must sum as it did before, to be equal to the bit.
        """

    @abstractmethod
    def held(self) -> list[HeldTensor]:
        """The tensors of the whole model's state that this worker has, or its parts of them."""

    def stepped(self) -> list[SteppedTensor]:
        """The tensors that this worker's optimizer steps."""
        from manyhands.placements.held import stepped  # noqa: PLC0415 - loads DTensor

        return stepped(self.held())

    def own_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """What only this worker needs to continue as it was: tensors, and plain numbers."""
        return {}, {}

    def load_own_state(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:  # noqa: B027 - most have none
        """Take over what `own_state` returned."""

    @abstractmethod
    def state(self) -> State:
        """The whole model's state, fetched tensor by tensor by all workers together.

        Only the first worker is guaranteed to get valid tensors.
        """


def forget_gradients(optimizer: torch.optim.Optimizer) -> None:
    """As `optimizer.zero_grad()`, without its preparations for profilers and compilers."""
    if type(optimizer).zero_grad is not torch.optim.Optimizer.zero_grad:
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def clip(parameters: Iterable[torch.Tensor], limit: float) -> None:
    """Clip the joint norm of the parameters' gradients to the limit."""
    gradients = [one.grad for one in parameters if one.grad is not None]
    if all(type(one) is torch.Tensor for one in gradients):
        clip_norm(gradients, limit)
        return
    from manyhands.engine.tensors import clip as clip_dtensors  # noqa: PLC0415 - loads DTensor

    clip_dtensors(gradients, limit)
