"""PipeDream: an asynchronous pipeline with one update per microbatch.

The pipeline is not drained after a batch, so when a microbatch's gradient arrives, the stage has
been updated by earlier microbatches. The gradient is computed with the parameters of the
microbatch's forward pass, which are kept (*stashed*) meanwhile, and applied to the newest ones. An
update from b of a batch's B samples has the weight b / B, as a factor of the learning rate. A
gradient with NaN or infinity is not applied, by each stage for itself.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.func import functional_call

from manyhands.codecs.kernels.finite import not_finite, not_finite_among
from manyhands.parameters.gradients import check_scalar
from manyhands.parameters.scheduled_step import weighted_step
from manyhands.parameters.weights.microbatches import divide, sizes_of
from manyhands.placements.pipelines.lockstep import LOSS, Stages, check_samples
from manyhands.schedules.pipedream import ahead

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from manyhands.codecs.kernels.finite import NotFinite
    from manyhands.engine.pipelines import Arrival
    from manyhands.job import Job
    from manyhands.placements.pipelines.stages import Staged
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits

_THERE: Final = 1
_BACK: Final = 0
"""Tags: activations to the next stage, and gradients to the previous one."""


@dataclass(frozen=True, eq=False)
class _InFlight:
    """A microbatch between its forward and its backward pass on this stage."""

    weight: float
    """Weight of its update."""
    given: torch.Tensor
    gives: torch.Tensor
    """The stage's output for it; on the last stage, its loss."""
    stash: dict[str, torch.Tensor]
    """The parameters of its forward pass."""
    version: int
    """Version of these parameters: the number of updates before."""
    gradient: torch.Tensor | None
    """The gradient of its output, once it has arrived; None on the last stage."""
    coming: Arrival | None


class PipeDreamPipeline(Stages):
    """One stage of an asynchronous pipeline.

    Args:
        job: the job to train.
        group: the workers, one for each stage.
        device: the device of this worker.
        waits: records when this worker waits for a neighbour.
        made: its stage.
        microbatches: number of microbatches of a batch.
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
        self.rescales = False
        self._rank, self._last = group.rank, group.size - 1
        self._section = made.sections[group.rank].train().traced
        self._ahead = ahead(group.rank, group.size)
        self._flying: deque[_InFlight] = deque()
        self._stash: dict[str, torch.Tensor] | None = None
        self._version = 0
        self._losses: deque[tuple[torch.Tensor, Arrival]] = deque()
        self._loss = torch.full((), torch.nan, dtype=torch.float64, device=device)
        self._applied: list[int] = []
        self._refused: NotFinite = ""

    def gradient(
        self,
        inputs: Any,
        targets: Any,
        weight: float,  # noqa: ARG002 - there is one replica
        samples: int,
    ) -> torch.Tensor:
        """Run the forward passes of the batch, and the backward passes that are due.

        Returns:
            The loss of the last batch that is complete on this stage: the current batch on the last
            stage, an earlier one on the others; NaN until there is one.
        """
        self._made.passing.check(inputs)
        check_samples(inputs, samples)
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
        """Do nothing: every microbatch has been applied as an update of its own."""

    def average_buffers(self) -> None:
        """Drain the pipeline, so that all stages have seen the same samples."""
        while self._flying:
            self._backward()

    def take_refused(self) -> NotFinite:
        """What a gradient had on this stage first, and so was not applied, since the last call."""
        found, self._refused = self._refused, ""
        return found

    def applied(self) -> list[int]:
        """The staleness of every update since the last call."""
        applied, self._applied = self._applied, []
        return applied

    def _entering(
        self, inputs: Iterator[torch.Tensor], sizes: Sequence[int]
    ) -> Iterator[torch.Tensor]:
        """The stage's inputs, microbatch by microbatch; the next one is received meanwhile."""
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
            # The optimizer updates the parameters in place.
            self._stash = {
                name: parameter.detach().clone().requires_grad_(parameter.requires_grad)
                for name, parameter in self._section.named_parameters()
            }
        gives: torch.Tensor = functional_call(self._section, self._stash, (given,))
        gradient = coming = None
        if self._rank == self._last:
            gives = self._job.criterion(gives, target)
            check_scalar(gives)
        else:
            self._give(gives, self._rank + 1, _THERE)
            gradient = torch.empty_like(gives, memory_format=torch.contiguous_format)
            coming = self._others.receive(gradient, self._rank + 1, _BACK)
        self._flying.append(
            _InFlight(weight, given, gives, self._stash, self._version, gradient, coming)
        )
        return gives

    def _backward(self) -> None:
        """Run the backward pass of the oldest microbatch in flight, and update."""
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
        found = not_finite_among([one for one in gradients[: len(stash)] if one is not None])
        if found:
            # What a later stage sent is not this one's, and was noted there.
            came = "" if flight.gradient is None else not_finite(flight.gradient)
            self._refused = self._refused if came else found
            return
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
        # As many as can be in flight between two neighbours, in both directions.
        while len(self._leaving) > 2 * (self._last + 1):
            self._leaving.popleft().wait()

    def _latest(self, loss: torch.Tensor, microbatches: int) -> torch.Tensor:
        """The loss of the last batch that is available on this stage without waiting."""
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
