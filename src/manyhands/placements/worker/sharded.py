"""Worker of `fully_sharded` and `zero`: a shard of every parameter."""

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
    from manyhands.placements.held import HeldTensor
    from manyhands.transport.collectives import Group


class Sharded(Bound):
    """A model sharded over workers by FSDP2; each worker trains on its own samples.

    Args:
        job: the job to train.
        group: the workers.
        device: the device of this worker's shards.
        spread: distributes a model's parameters over the workers.
    """

    def __init__(
        self, job: Job, group: Group, device: torch.device, spread: Callable[[nn.Module], None]
    ) -> None:
        self.model = make_in_parts(partial(build, job), spread, device)
        self.optimizer = job.make_optimizer(self.model)
        self.replica, self.replicas = group.rank, group.size
        self._job = job
        self._device = device
        self._group = group
        self._largest = 0

    def weigh(self, samples: int, total: int) -> float:
        """As in `Bound`; all workers use as many micro-batches as the one with the most samples."""
        self._largest = -(-total // self.replicas)
        return super().weigh(samples, total)

    def gradient(self, inputs: Any, targets: Any, weight: float, samples: int) -> torch.Tensor:
        """FSDP2 gathers each unit before it computes, and reduces and scatters gradients."""
        with untouched(self.model, when=not weight):
            return backward(
                *(self._job, self._device, self.model, inputs, targets, samples, weight),
                largest=self._largest,
            )

    def outputs(self, inputs: Any) -> Any:
        """Outputs for this worker's samples; all workers take part in gathering parameters."""
        return self.model(inputs)

    def average_buffers(self) -> None:
        """Average over all workers: buffers are not sharded."""
        average_buffers(self.model, self._group)

    def held(self) -> list[HeldTensor]:
        """This worker's parts, and the tensors that all workers have."""
        from manyhands.placements.held import held_by_all  # noqa: PLC0415 - on top of others

        named = self.model.state_dict(keep_vars=True)
        return held_by_all(named, aliases(self.model), self._group.rank, self._group.size)

    def state(self) -> State:
        """The state, gathered tensor by tensor."""
        return sharded_state(self.model)


def sharded_state(model: nn.Module) -> State:
    """The state of a model whose tensors may be sharded over workers."""
    again = aliases(model)
    entries = {
        name: Entry(tensor.dtype, tuple(tensor.shape), _gather(tensor))
        for name, tensor in model.state_dict().items()
        if name not in again
    }
    return State(entries, {name: first for name, first in again.items() if first in entries})


def _gather(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: whole(tensor)
