"""A placement in force on one worker: the seam between the trainer and PyTorch's engine.

The trainer owns the data, the clock, the trace and the end of a run. What depends on where the
model lies is the bound placement's: how a worker's part of it is made, how a batch becomes a
gradient, how the optimizer steps, how outputs are computed for an evaluation, and how the whole
model is brought together for the file. A worker may hold a copy of the model, a shard of every
layer, a few layers, or a part of one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal

import torch

from manyhands.parameters.clipping import clip_norm
from manyhands.parameters.weighted_step import weighted_step

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from manyhands.files.checkpoint import State


class Bound(ABC):
    """One worker's part of a model, and how it is trained together with the others'.

    Every method is called by all workers at the same step, because others may wait in it.
    """

    model: nn.Module
    """What this worker holds of the model."""
    optimizer: torch.optim.Optimizer
    """Its optimizer, for what this worker updates."""
    replica: int
    """Which of the replicas this worker belongs to. The workers of one replica, if there are
    several, are given the same samples."""
    replicas: int
    """How many parts a global batch is split into."""
    copies: int = 1
    """Among how many it is divided first: those that step apart from each other."""
    parts: int = 1
    """Of how many means, weighed by samples, the loss of a share is made."""
    speaks: bool = True
    """Whether this worker counts the samples and the losses of its replica: one of them does."""
    waiting: Literal["exchange", "wait"] = "exchange"
    """What its waits are. In a collective all wait for the slowest, and what is beyond that is the
    way; in a pipeline each waits for its neighbour."""
    counts: float = 1.0
    """What the step that is prepared will be weighted with; told before its gradient, for those
    that update while they compute it."""
    words: tuple[str, ...] = ()
    """How the model was divided among the workers, if that is not a matter of course."""

    def weigh(self, samples: int, total: int) -> float:
        """What the next gradient is to weigh; told before every one.

        Args:
            samples: of this replica's share.
            total: of the global batch.
        """
        return samples * self.replicas / total

    @abstractmethod
    def gradient(self, inputs: Any, targets: Any, weight: float) -> torch.Tensor:
        """Leave the mean gradient of those that step together where `step` finds it.

        Args:
            inputs: this replica's share of the global batch.
            targets: what should come out.
            weight: samples of this share over the mean of their shares. Zero for a replica for
                which nothing was left: it computes on another's share and must not learn from it.

        Returns:
            The loss, the mean over the share's samples, on every worker of the replica.
        """

    def clip(self, limit: float) -> None:
        """Scale the gradient down if its norm, over the whole model, is above the limit."""
        groups = self.optimizer.param_groups
        clip([parameter for group in groups for parameter in group["params"]], limit)

    def step(self, weight: float) -> None:
        """Let the optimizer consume the gradient, with `weight` on its learning rates."""
        weighted_step(self.optimizer, weight)
        self.optimizer.zero_grad()

    def applied(self) -> list[int]:
        """The staleness of every update since the last call, where updates can be stale."""
        return []

    @abstractmethod
    def outputs(self, inputs: Any) -> Any:
        """What the model says to the inputs; it must be right where a worker speaks."""

    @abstractmethod
    def average_buffers(self) -> None:
        """Make the buffers of all replicas alike: floating ones their mean, others the first's."""

    @abstractmethod
    def state(self) -> State:
        """The whole model's state, to be fetched by all workers together, tensor by tensor.

        The first worker gets it; what the others get of it is of no importance.
        """


def clip(parameters: Iterable[torch.Tensor], limit: float) -> None:
    """Scale their gradients by one factor such that their norm is at most the limit."""
    gradients = [one.grad for one in parameters if one.grad is not None]
    if all(type(one) is torch.Tensor for one in gradients):
        clip_norm(gradients, limit)
        return
    from manyhands.engine.tensors import clip as clip_laid_out  # noqa: PLC0415 - loads DTensor

    clip_laid_out(gradients, limit)
