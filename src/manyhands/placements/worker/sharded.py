"""A shard of every parameter on each worker: what `fully_sharded` and `zero` train."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from manyhands.engine.tensors import whole
from manyhands.files.checkpoint import Entry, State
from manyhands.parameters.gradients import backward, build
from manyhands.placements.bound import Bound
from manyhands.placements.model.buffers import average_buffers, untouched
from manyhands.placements.model.materialize import aliases, make_in_parts

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn

    from manyhands.job import Job
    from manyhands.transport.collectives import Group


class Sharded(Bound):
    """Parameters that torch's engine spreads over workers; each worker trains on its own samples.

    Args:
        job: what is trained.
        group: the workers.
        device: where this one's shards lie.
        spread: lays a model's parameters out over the workers.
    """

    def __init__(
        self, job: Job, group: Group, device: torch.device, spread: Callable[[nn.Module], None]
    ) -> None:
        self.model = make_in_parts(partial(build, job), spread, device)
        self.optimizer = job.optimizer(self.model)
        self.replica, self.replicas = group.rank, group.size
        self._job = job
        self._device = device
        self._group = group
        self._largest = 0

    def weigh(self, samples: int, total: int) -> float:
        """Everybody computes in as many parts as whoever has most samples."""
        self._largest = -(-total // self.replicas)
        return super().weigh(samples, total)

    def gradient(self, inputs: Any, targets: Any, weight: float) -> torch.Tensor:
        """The engine gathers each unit when it is its turn, and scatters the mean gradients."""
        with untouched(self.model, when=not weight):
            return backward(
                *(self._job, self._device, self.model, inputs, targets, weight),
                largest=self._largest,
            )

    def outputs(self, inputs: Any) -> Any:
        """Everybody gathers the parameters, and answers for its own samples."""
        return self.model(inputs)

    def average_buffers(self) -> None:
        """Over all workers: buffers are not sharded."""
        average_buffers(self.model, self._group)

    def state(self) -> State:
        """Gathered tensor by tensor."""
        return sharded_state(self.model)


def sharded_state(model: nn.Module) -> State:
    """The state of a model whose tensors may lie on several workers."""
    again = aliases(model)
    entries = {
        name: Entry(tensor.dtype, tuple(tensor.shape), _gather(tensor))
        for name, tensor in model.state_dict().items()
        if name not in again
    }
    return State(entries, {name: first for name, first in again.items() if first in entries})


def _gather(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: whole(tensor)
