"""Copies of a model that train apart, and meet every so many steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from manyhands.engine.fake_tensors import is_imagined
from manyhands.engine.tensors import own
from manyhands.parameters.arithmetic import descend
from manyhands.placements.bound import Bound
from manyhands.placements.model.buffers import average_buffers
from manyhands.protocols import DiLoCo
from manyhands.sampling.division import part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.files.checkpoint import State
    from manyhands.job import Job
    from manyhands.placements.placement import Placement
    from manyhands.protocols import Meeting
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


def bind_apart(
    placement: Placement,
    meeting: Meeting,
    copies: int,
    job: Job,
    group: Group,
    device: torch.device,
    waits: Waits,
) -> Bound:
    """Bind a placement on the workers of this one's copy, whose numbers follow each other."""
    size = group.size // copies
    copy, place = divmod(group.rank, size)
    inside = group.part("copy", range(copy * size, (copy + 1) * size))
    beside = group.part("beside", range(place, group.size, size))
    return PeriodicSync(placement.bind(job, inside, device, waits), beside, meeting, waits)


class PeriodicSync(Bound):
    """One copy's part of the model on this worker, and those at the same place of other copies.

    A copy steps by itself. After as many steps as the protocol says, and before anybody looks at
    the model, what the workers at one place have becomes their mean, each weighing the samples
    that its copy was trained on since the last time, or where an outer step from there leads.

    Args:
        inner: the copy, as its own workers train it.
        beside: the workers at this one's place in all copies.
        meeting: says when they meet and what they do then.
        waits: told of the meetings.
    """

    def __init__(self, inner: Bound, beside: Group, meeting: Meeting, waits: Waits) -> None:
        self.model, self.optimizer = inner.model, inner.optimizer
        self.copies = beside.size
        self.replica = beside.rank * inner.replicas + inner.replica
        self.replicas = beside.size * inner.replicas
        self.speaks, self.waiting, self.words = inner.speaks, inner.waiting, inner.words
        self._inner, self._beside, self._meeting, self._waits = inner, beside, meeting, waits
        self._learns = True
        """Whether the copy has samples of the global batch."""
        self._steps = self._alone = 0
        self._made_of = self._all_made_of = 0
        self._lines = [_Line(line, meeting) for line in self._gather()]

    @torch.no_grad()
    def _gather(self) -> Iterator[torch.Tensor]:
        """What this worker trains, in one line for every type."""
        for tensors in self._by_type().values():
            yield torch.cat([tensor.reshape(-1) for tensor in tensors])

    def _by_type(self) -> dict[torch.dtype, list[torch.Tensor]]:
        groups = self.optimizer.param_groups
        trained = {id(one): one for group in groups for one in group["params"] if one.requires_grad}
        tensors: dict[torch.dtype, list[torch.Tensor]] = {}
        for parameter in trained.values():
            if own(parameter).numel():
                tensors.setdefault(parameter.dtype, []).append(own(parameter))
        return tensors

    def weigh(self, samples: int, total: int) -> float:
        """Within the copy alone."""
        share = part(total, self._beside.rank, self.copies)
        together = share.stop - share.start
        self._learns = together > 0
        self._made_of += together
        self._all_made_of += total
        return self._inner.weigh(samples, together) if together else 0.0

    def gradient(self, inputs: Any, targets: Any, weight: float) -> torch.Tensor:
        """The copy's."""
        return self._inner.gradient(inputs, targets, weight)

    def clip(self, limit: float) -> None:
        """By the norm of the copy's gradient."""
        self._inner.clip(limit)

    def step(self, weight: float) -> None:
        """The copy's, if it has samples; then perhaps a meeting."""
        if self._learns:
            self._inner.step(weight)
        self.optimizer.zero_grad()
        self._steps += 1
        self._alone += 1
        if self._alone >= self._meeting.interval(self._steps):
            self._meet()

    @torch.no_grad()
    def _meet(self) -> None:
        if is_imagined():
            return
        for kept, line, tensors in zip(
            self._lines, self._gather(), self._by_type().values(), strict=True
        ):
            line.mul_(self._made_of / self._all_made_of)
            self._waits.note("allreduce", line.nbytes, self.copies)
            self._waits.begin()
            self._beside.sum(line)
            self._waits.end()
            common = kept.conclude(line)
            sizes = [tensor.numel() for tensor in tensors]
            for tensor, piece in zip(tensors, common.split_with_sizes(sizes), strict=True):
                tensor.copy_(piece.view_as(tensor))
        self._alone = self._made_of = self._all_made_of = 0

    def outputs(self, inputs: Any) -> Any:
        """The copy's: all are alike when they are asked."""
        return self._inner.outputs(inputs)

    def average_buffers(self) -> None:
        """Meet, if there were steps since the last time; then make the buffers alike too."""
        if self._alone:
            self._meet()
        self._inner.average_buffers()
        average_buffers(self.model, self._beside)

    def state(self) -> State:
        """The first copy's."""
        return self._inner.state()


class _Line:
    """What a meeting makes of the mean of parameters of one type, and what it remembers for it."""

    def __init__(self, first: torch.Tensor, meeting: Meeting) -> None:
        self._outer = meeting if isinstance(meeting, DiLoCo) else None
        if self._outer is not None:
            self._here, self._velocity = first, torch.zeros_like(first)

    def conclude(self, mean: torch.Tensor) -> torch.Tensor:
        """Where all go on from."""
        if self._outer is None:
            return mean
        outer = self._outer
        descend(self._here, mean, self._velocity, outer.outer_lr, outer.outer_momentum)
        return self._here
