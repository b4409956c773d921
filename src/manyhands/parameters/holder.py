"""A server's part of the parameters, with the user's optimizer on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from manyhands.parameters.layout import Layout
from manyhands.parameters.weight import weighted_step

if TYPE_CHECKING:
    from torch import nn, optim

    from manyhands.job import Job


class Holder:
    """The state of one shard: its bytes and the optimizer that changes them.

    Args:
        job: its model gives the first parameters, its optimizer the class, the groups and their
            settings.
        number: which shard.
        servers: of how many.
    """

    def __init__(self, job: Job, number: int, servers: int) -> None:
        model, optimizer = make(job)
        self.layout = Layout.of(model, optimizer, servers)
        self.shard = self.layout.shards[number]
        self.bytes = torch.zeros(self.shard.nbytes, dtype=torch.uint8)
        """The parameters, then the buffers."""
        tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        self._parameters = []
        self._buffers = [fragment.view(self.bytes) for fragment in self.shard.buffers]
        groups: list[list[nn.Parameter]] = [[] for _ in optimizer.param_groups]
        with torch.no_grad():
            for fragment in (*self.shard.parameters, *self.shard.buffers):
                whole = tensors[fragment.name].detach().reshape(-1)
                fragment.view(self.bytes).view(-1).copy_(whole[fragment.start : fragment.stop])
            for fragment in self.shard.parameters:
                parameter = torch.nn.Parameter(fragment.view(self.bytes))
                self._parameters.append(parameter)
                groups[fragment.group].append(parameter)
        # The user's own optimizer, with our fragments in place of the model's tensors: nothing is
        # assumed about how it was constructed. Its state is made at its first step.
        for group, parameters in zip(optimizer.param_groups, groups, strict=True):
            group["params"] = parameters
        self.optimizer: optim.Optimizer = optimizer

    def step(self, update: torch.Tensor, weight: float, blend: float = 1.0) -> None:
        """One optimizer step with an update of this shard's bytes, acting with `weight`.

        The update's gradients lie where the parameters do. Its buffers are a worker's running
        statistics: ours move towards them by `blend`, one over the number of workers, so that
        with one worker they are its own.
        """
        for parameter, fragment in zip(self._parameters, self.shard.parameters, strict=True):
            parameter.grad = fragment.view(update)
        weighted_step(self.optimizer, weight)
        for parameter in self._parameters:
            parameter.grad = None
        for buffer, fragment in zip(self._buffers, self.shard.buffers, strict=True):
            buffer.lerp_(fragment.view(update), blend)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
        """Everything that a successor needs: tensors where they lie, and plain numbers."""
        tensors = {"bytes": self.bytes}
        numbers: dict[str, object] = {}
        for index, parameter in enumerate(self._parameters):
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    tensors[f"{index}/{key}"] = value.contiguous()
                else:
                    numbers[f"{index}/{key}"] = value
        return tensors, numbers

    def restore(self, tensors: dict[str, torch.Tensor], numbers: dict[str, object]) -> None:
        """Continue where `state` was taken."""
        self.bytes.copy_(tensors["bytes"])
        for name, value in (*tensors.items(), *numbers.items()):
            index, _, key = name.partition("/")
            if key:
                self.optimizer.state[self._parameters[int(index)]][key] = value


def make(job: Job) -> tuple[nn.Module, optim.Optimizer]:
    """The job's model and optimizer, begun with its seed as everywhere."""
    torch.manual_seed(job.seed)
    model = job.model()
    return model, job.optimizer(model)
