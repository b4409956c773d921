"""Synchronous pipeline: all microbatches of a batch, then one update of every stage."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from manyhands.engine.pipelines import Stage, runtime
from manyhands.engine.sharding import is_sharded, reshard
from manyhands.engine.tensors import gradient_of, is_first_copy, norm, own
from manyhands.parameters.gradients import check_scalar
from manyhands.parameters.weights.loss_weight import counted_loss
from manyhands.parameters.weights.microbatches import divide, sizes_of
from manyhands.placements.bound import Bound
from manyhands.placements.held import HeldTensor
from manyhands.placements.model.buffers import average_buffers, untouched
from manyhands.placements.pipelines.transfers import StageTransfers

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.engine.pipelines import Arrival
    from manyhands.files.checkpoint import State
    from manyhands.job import Job
    from manyhands.placements.pipelines.stage_group import StageGroup
    from manyhands.placements.pipelines.stages import Staged
    from manyhands.schedules import Table
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


def check_samples(inputs: torch.Tensor, samples: int) -> None:
    """Raise ValueError if dim 0 of a batch is not that of its samples."""
    if len(inputs) != samples:
        raise ValueError(
            "a pipeline divides a batch along dim 0 of its inputs, which must be that of the "
            f"samples: got inputs of shape {tuple(inputs.shape)} for {samples} samples. Return all "
            "samples, along dim 0, from collate_fn"
        )


LOSS: Final = 1 << 20
EVALUATION: Final = 1 << 21
"""Tags of an evaluation, above those that a step uses."""
_KEPT: Final = 4
"""Cached schedules: that of a full batch, and those of the short batches at the end of epochs."""
_AHEAD: Final = 8
"""Limit of tensors of an evaluation that were sent and not received yet."""


class Stages(Bound):
    """Base of all pipelines: a worker has some stages, and the last worker has the outputs."""

    waiting = "wait"

    def __init__(
        self,
        job: Job,
        group: Group,
        device: torch.device,
        waits: Waits,
        made: Staged,
        microbatches: int,
    ) -> None:
        self.model = nn.ModuleList(made.sections.values())
        self.optimizer = made.optimizer
        self.replica, self.replicas = 0, 1
        self.speaks = self._at_end = group.rank == group.size - 1
        self.steps_apart = group.size > 1
        self._job, self._group, self._made = job, group, made
        self._others = StageTransfers(group, waits)
        self.words = (*made.words, *self._others.words)
        self._device = device
        self._microbatches = self.parts = microbatches
        self._stages = made.stages
        self._leaving: deque[Arrival] = deque()

    def outputs(self, inputs: Any) -> Any:
        """The outputs, computed microbatch by microbatch in a pipeline."""
        self._made.passing.check(inputs)
        count = min(self._microbatches, len(inputs)) if self._made.passing.joins else 1
        answers = [self._answer(given) for given in divide(inputs, sizes_of(len(inputs), count))]
        reshard(self._made.sections.values())
        if not self._at_end:
            return None
        return torch.cat(answers) if self._made.passing.joins else answers[0]

    def _answer(self, value: torch.Tensor) -> Any:
        """The output of this worker's last stage for a microbatch."""
        samples = len(value)
        for number, section in self._made.sections.items():
            if number and self._group.size > 1:
                shape, dtype = self._made.passing.after(number - 1, samples)
                value = torch.empty(shape, dtype=dtype, device=value.device)
                source = (number - 1) % self._group.size
                self._others.arrive(self._others.receive(value, source, EVALUATION + number))
            value = section(value)
            if number + 1 < self._stages and self._group.size > 1:
                to, tag = (number + 1) % self._group.size, EVALUATION + number + 1
                self._leaving.append(self._others.send(value, to, tag))
                while len(self._leaving) > _AHEAD:
                    self._leaving.popleft().wait()
        return value

    def tell(self, loss: torch.Tensor) -> torch.Tensor:
        """Send the loss, and what else the last worker knows, to all workers."""
        word = loss.double().to(self._device)
        if self._at_end:
            # The sender does not wait: the other workers receive it later.
            self._leaving.extend(
                self._others.send(word, to, LOSS) for to in range(self._group.size - 1)
            )
            while len(self._leaving) > _AHEAD * self._group.size:
                self._leaving.popleft().wait()
        else:
            self._others.arrive(self._others.receive(word, self._group.size - 1, LOSS))
        return word

    def clip(self, limit: float) -> None:
        """Clip by the norm over all workers: the root of the sum of their squared norms."""
        gradients = self._gradients()
        square = norm(gradients).double().square().to(self._device)
        self._group.sum_small(square)
        factor = torch.clamp(limit / (square.sqrt() + 1e-6), max=1.0)
        for gradient in gradients:
            own(gradient).mul_(factor)

    def _gradients(self) -> list[torch.Tensor]:
        return [one for one in map(gradient_of, self.consumed()) if one is not None]

    def average_buffers(self) -> None:
        """Do nothing: every buffer is on one worker of a pipeline."""

    def held(self) -> list[HeldTensor]:
        """The tensors of this worker's stages; one that several have is stored by its owner."""
        made = self._made
        return [
            HeldTensor(
                name, tensor, made.pieces[name].owner == self._group.rank and is_first_copy(tensor)
            )
            for name, tensor in made.tensors.items()
        ]

    def state(self) -> State:
        """The state of all stages; workers wait until what they sent has been received."""
        while self._leaving:
            self._leaving.popleft().wait()
        return self._made.state(self._group)


class LockstepPipeline(Stages):
    """A pipeline with one update per batch, by torch.distributed.pipelining.

    Args:
        job: the job to train.
        group: the workers.
        device: the device of this worker.
        waits: records when this worker waits for a neighbour.
        made: its stages.
        microbatches: number of microbatches of a batch.
        count: number of microbatches for a number of samples.
        table: the schedule for a number of microbatches.
        stage_group: its position among the pipelines of a mesh.
    """

    def __init__(
        self,
        job: Job,
        group: Group,
        device: torch.device,
        waits: Waits,
        made: Staged,
        microbatches: int,
        count: Callable[[int], int],
        table: Callable[[int], Table],
        stage_group: StageGroup,
    ) -> None:
        super().__init__(job, group, device, waits, made, microbatches)
        self._stage_group = stage_group
        self.replica, self.replicas = stage_group.replica, stage_group.replicas
        self.speaks = self._at_end and stage_group.speaks
        self._count, self._table = count, table
        self._runs: dict[tuple[int, ...], Callable[..., object]] = {}
        self._losses: list[tuple[torch.Tensor, torch.Tensor | float]] = []
        self._counted = counted_loss(job)
        self._samples = 0

    def gradient(self, inputs: Any, targets: Any, weight: float, samples: int) -> torch.Tensor:
        """Run the schedule; each microbatch's loss is weighted by its samples."""
        self._made.passing.check(inputs)
        check_samples(inputs, samples)
        self._samples = samples
        sizes = sizes_of(len(inputs), self._count(len(inputs)))
        shares = [size / len(inputs) for size in sizes]
        wanted = zip(divide(targets, sizes), shares, (weight for _ in sizes), strict=True)
        with untouched(self.model, when=not weight):
            self._run(sizes)([*divide(inputs, sizes)], [*wanted])
        copied = [own(one) for one in self._gradients() if not is_sharded(one)]
        for copies in self._stage_group.copies:
            self._others.average(copied, copies)
        told = self.tell(self._mean())
        if self._counted is not None and not self._at_end and told[1] >= 0:
            self._counted.add(told[1])
        return told[0]

    def average_buffers(self) -> None:
        """Average over the replicas of the pipeline."""
        for copies in self._stage_group.copies:
            average_buffers(self.model, copies)

    def _run(self, sizes: tuple[int, ...]) -> Callable[..., object]:
        """The function that executes the schedule for microbatches of these sizes."""
        if sizes not in self._runs:
            if len(self._runs) >= _KEPT:
                del self._runs[next(iter(self._runs))]
            self._runs[sizes] = self._make(sizes)
        return self._runs[sizes]

    def _make(self, sizes: tuple[int, ...]) -> Callable[..., object]:
        table = self._table(len(sizes))
        after = self._made.passing.after
        stages = [
            Stage(
                section,
                number,
                table.stages,
                self._device,
                self._others,
                [after(number - 1, size) for size in sizes] if number else None,
                [after(number, size) for size in sizes] if number + 1 < table.stages else None,
            )
            for number, section in self._made.sections.items()
        ]
        order = [[*map(str, actions)] for actions in table.ranks]
        return runtime(stages, order, len(sizes), self._loss)

    def _loss(self, outputs: Any, wanted: tuple[Any, float, float]) -> torch.Tensor:
        """The loss of a microbatch, weighted by its samples or, if it has one, by its own weight.

        Weights of a loss are divided by the samples of the batch, as in `parameters.backward`.
        """
        target, share, weight = wanted
        loss: torch.Tensor = self._job.criterion(outputs, target)
        check_scalar(loss)
        own = None if self._counted is None else self._counted.weight(loss, share * self._samples)
        if own is None or self._counted is None:
            self._losses.append((loss.detach().double() * share, share))
            return loss * (share * weight)
        self._counted.add(own)
        self._losses.append((loss.detach().double() * own, own))
        return loss * (own * weight / self._samples)

    def _mean(self) -> torch.Tensor:
        """The mean of the losses of all microbatches since the last call, and their weight.

        The weight is −1 if the losses have none of their own.
        """
        losses, self._losses = self._losses, []
        total = sum((loss for loss, _ in losses), torch.zeros((), dtype=torch.float64))
        weights = [own for _, own in losses if isinstance(own, torch.Tensor)]
        if not weights:
            return torch.stack([total, torch.full_like(total, -1.0)])
        weight = torch.stack(weights).sum()
        return torch.stack([total / weight.clamp(min=1), weight])
