"""PipeDream: a pipeline that never drains; every microbatch is an update, of stale parameters.

A stage goes on to the next microbatch without waiting for a batch to be complete, so when a
microbatch's gradient comes back, the stage has been updated by those before it. Its gradient is
computed with the parameters that it went forward with, which are kept (*stashed*) meanwhile, and
applied to the newest. An update from b of a batch's B samples weighs b / B of what the whole
batch's would, by the learning rate, as everywhere.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.func import functional_call

from manyhands.parameters.gradients import check_scalar
from manyhands.parameters.microbatches import divide, sizes_of
from manyhands.parameters.weighted_step import weighted_step
from manyhands.placements.pipelines.lockstep import LOSS, Stages
from manyhands.schedules.pipedream import ahead

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from manyhands.engine.pipelines import Arrival
    from manyhands.job import Job
    from manyhands.placements.pipelines.stages import Staged
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits

_THERE: Final = 1
_BACK: Final = 0
"""Tags: what goes to the next stage, and what to the one before."""


@dataclass(frozen=True, eq=False)
class _Flight:
    """A microbatch that went forward through this stage and has not come back."""

    weight: float
    """Of its update."""
    given: torch.Tensor
    gives: torch.Tensor
    """What the stage made of it; its loss, on the last stage."""
    stash: dict[str, torch.Tensor]
    """The parameters that it went forward with."""
    version: int
    """How many updates there had been of them."""
    gradient: torch.Tensor | None
    """Of what it gives, once it is there; None on the last stage."""
    coming: Arrival | None


class PipeDreamPipeline(Stages):
    """One stage of a stream of microbatches.

    Args:
        job: what is trained.
        group: the workers, one for each stage.
        device: where this one computes.
        waits: told when this worker waits for a neighbour.
        made: its stage.
        microbatches: into how many a batch is divided.
    """

    def __init__(
        self,
        job: Job,
        group: Group,
        device: torch.device,
        waits: Waits,
        made: Staged,
        microbatches: int,
    ) -> None:
        super().__init__(job, group, device, waits, made, microbatches)
        self._rank, self._last = group.rank, group.size - 1
        self._section = made.sections[group.rank].train().traced
        self._ahead = ahead(group.rank, group.size)
        self._flying: deque[_Flight] = deque()
        self._stash: dict[str, torch.Tensor] | None = None
        self._version = 0
        self._losses: deque[tuple[torch.Tensor, Arrival]] = deque()
        self._loss = torch.full((), torch.nan, dtype=torch.float64, device=device)
        self._applied: list[int] = []

    def gradient(
        self,
        inputs: Any,
        targets: Any,
        weight: float,  # noqa: ARG002 - there is one replica
    ) -> torch.Tensor:
        """Let the batch's microbatches enter, and take back those whose turn it is.

        Returns:
            The loss of the last batch whose microbatches have all come back to this stage: of this
            one on the last, of an earlier one before it; not a number until there is one.
        """
        self._made.passing.check(inputs)
        sizes = sizes_of(len(inputs), min(self._microbatches, len(inputs)))
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        entering = self._entering(divide(inputs, sizes), sizes)
        for given, target, size in zip(entering, divide(targets, sizes), sizes, strict=True):
            gives = self._forward(given, target, self.counts * size / len(inputs))
            if self.speaks:
                total += gives.detach().double() * (size / len(inputs))
            if len(self._flying) > self._ahead:
                self._backward()
        return self._latest(total, len(sizes))

    def step(self, weight: float) -> None:
        """Nothing is left to do: every microbatch has been an update of its own."""

    def average_buffers(self) -> None:
        """Let the pipeline drain, so that all stages have seen the same samples."""
        while self._flying:
            self._backward()

    def applied(self) -> list[int]:
        """The staleness of the updates since it was last asked for."""
        applied, self._applied = self._applied, []
        return applied

    def _entering(
        self, inputs: Iterator[torch.Tensor], sizes: Sequence[int]
    ) -> Iterator[torch.Tensor]:
        """What the stage is given, microbatch by microbatch; the next is under way by then."""
        if not self._rank:
            yield from inputs
            return
        coming: deque[tuple[torch.Tensor, Arrival]] = deque()
        for size in sizes:
            shape, dtype = self._made.passing.after(self._rank - 1, size)
            given = torch.empty(shape, dtype=dtype, device=self._device)
            coming.append((given, self._others.receive(given, self._rank - 1, _THERE)))
            if len(coming) > 1:
                yield self._taken(*coming.popleft())
        yield self._taken(*coming.popleft())

    def _taken(self, given: torch.Tensor, coming: Arrival) -> torch.Tensor:
        self._others.arrive(coming)
        return given.requires_grad_()

    def _forward(self, given: torch.Tensor, target: Any, weight: float) -> torch.Tensor:
        if self._stash is None:
            # The optimizer writes to the parameters where they lie.
            self._stash = {
                name: parameter.detach().clone().requires_grad_(parameter.requires_grad)
                for name, parameter in self._section.named_parameters()
            }
        gives: torch.Tensor = functional_call(self._section, self._stash, (given,))
        gradient = coming = None
        if self._rank == self._last:
            gives = self._job.loss(gives, target)
            check_scalar(gives)
        else:
            self._give(gives, self._rank + 1, _THERE)
            gradient = torch.empty_like(gives, memory_format=torch.contiguous_format)
            coming = self._others.receive(gradient, self._rank + 1, _BACK)
        self._flying.append(
            _Flight(weight, given, gives, self._stash, self._version, gradient, coming)
        )
        return gives

    def _backward(self) -> None:
        """Take back the oldest microbatch under way, and update."""
        flight = self._flying.popleft()
        if flight.coming is not None:
            self._others.arrive(flight.coming)
        stash = {name: tensor for name, tensor in flight.stash.items() if tensor.requires_grad}
        wanted = [*stash.values(), *([flight.given] if self._rank else [])]
        gradients = torch.autograd.grad(flight.gives, wanted, flight.gradient, allow_unused=True)
        if self._rank:
            back = gradients[-1]
            back = torch.zeros_like(flight.given) if back is None else back
            self._give(back, self._rank - 1, _BACK)
        parameters = dict(self._section.named_parameters())
        for name, gradient in zip(stash, gradients, strict=False):
            parameters[name].grad = gradient
        weighted_step(self.optimizer, flight.weight)
        self.optimizer.zero_grad()
        self._applied.append(self._version - flight.version)
        self._version += 1
        self._stash = None

    def _give(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        self._leaving.append(self._others.send(tensor, to, tag))
        # As many as can be under way between two neighbours, there and back.
        while len(self._leaving) > 2 * (self._last + 1):
            self._leaving.popleft().wait()

    def _latest(self, loss: torch.Tensor, microbatches: int) -> torch.Tensor:
        """The loss of the last batch that this stage can know without waiting for it."""
        if self.speaks:
            self._leaving.extend(self._others.send(loss, to, LOSS) for to in range(self._last))
            return loss
        word = torch.zeros_like(loss)
        self._losses.append((word, self._others.receive(word, self._last, LOSS)))
        behind = -(-self._ahead // microbatches)
        while len(self._losses) > behind:
            self._loss, coming = self._losses.popleft()
            coming.wait()
        return self._loss
