"""A server's shard of the parameters, with the job's optimizer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from manyhands.job.optimizers import parts_of
from manyhands.parameters.arithmetic import not_finite_in
from manyhands.parameters.coupling import coupling_of
from manyhands.parameters.divided_state import state_of
from manyhands.parameters.initial.deferred import HELD
from manyhands.parameters.initial.shard_values import begin
from manyhands.parameters.initial.trimming import trim
from manyhands.parameters.optional.clipping import clip_norm
from manyhands.parameters.optional.named_state import (
    lines_of,
    load_named,
    named_entries,
    named_numbers,
    sizes_of_parameters,
)
from manyhands.parameters.references import References
from manyhands.parameters.scheduled_step import GroupSchedule, weighted_step
from manyhands.parameters.shard_vectors import ShardVectors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn, optim

    from manyhands.codecs.kernels.finite import NotFinite
    from manyhands.files.checkpoints.parts import TensorPart
    from manyhands.files.checkpoints.reading import Checkpoint
    from manyhands.job import Job
    from manyhands.parameters.layout import Fragment
    from manyhands.parameters.optional.named_state import Lines


class Holder(ShardVectors):
    """The state of one shard: its bytes, and the optimizer that updates them.

    Args:
        job: defines the initial parameters, and the optimizer with its groups and settings.
        number: index of the shard.
        servers: number of shards.
        clip: the largest norm of a mean update; None if workers clip.
        room: memory for the parameters, if others read them there.
    """

    def __init__(
        self,
        job: Job,
        number: int,
        servers: int,
        *,
        clip: float | None = None,
        room: torch.Tensor | None = None,
    ) -> None:
        begun = begin(job, number, servers)
        optimizer = begun.optimizer
        self.layout = begun.layout
        values = begun.bytes if room is None else room.copy_(begun.bytes)
        super().__init__(self.layout.shards[number], values)
        # The job's own optimizer, with fragments in place of the model's tensors: nothing is
        # assumed about its constructor. Its state is created at its first step; state that exists
        # already (as in Adagrad) refers to the model's tensors, and would keep them in memory.
        self.optimizer: optim.Optimizer = optimizer
        # For elementwise optimizers, adjacent tensors are stepped as one: a model of many small
        # tensors then takes one step instead of many.
        self._merges = coupling_of(optimizer) == "element"
        self._lines: tuple[Fragment, ...] = ()
        self._parameters: list[nn.Parameter] = []
        self._objective_of: list[int] = []
        """By parameter, the objective whose optimizer steps it."""
        self._places: list[frozenset[int]] = []
        """By parameter, the places in the shard of the parameters of the model that it has."""
        self._unused: dict[int, frozenset[int]] = {}
        """By sum, the places of the parameters without a gradient in it."""
        self._give(self.shard.flat_by_group if self._merges else self.shard.parameters)
        if self.layout.nbytes > HELD:
            # The model may have been created whole, and is no longer needed.
            trim()
        self.rate = float(optimizer.param_groups[0]["lr"])
        """The initial learning rate."""
        self._lr_factor = job.lr_factor
        self._new_schedule = partial(GroupSchedule.of, job, optimizer)
        """Makes the schedule at the first step: where workers step themselves, none is needed."""
        self._schedule: GroupSchedule | None = None
        self._has_schedule = job.lr_scheduler is not None
        self._clip = clip
        self._remembered: dict[str, torch.Tensor] = {}
        self.references = References()
        """What callers have received and sent, if either is encoded as differences."""
        self.refused: dict[str, int] = {}
        """By caller, the number of its last call whose payload was not finite."""

    def _give(self, lines: tuple[Fragment, ...]) -> None:
        """Let the optimizer step these parts of the shard from now on, with their state."""
        groups: list[list[nn.Parameter]] = [[] for _ in self.optimizer.param_groups]
        before = [
            (line, self.optimizer.state.get(one, {}))
            for line, one in zip(self._lines, self._parameters, strict=True)
        ]
        made = [torch.nn.Parameter(line.view(self.bytes)) for line in lines]
        states = [state_of(line, before) for line in lines]
        for line, parameter in zip(lines, made, strict=True):
            groups[line.group].append(parameter)
        for group, parameters in zip(self.optimizer.param_groups, groups, strict=True):
            for replaced in group["params"]:
                self.optimizer.state.pop(replaced, None)
            group["params"] = parameters
        for parameter, state in zip(made, states, strict=True):
            if state:
                self.optimizer.state[parameter] = state
        counts = [len(one.param_groups) for one in parts_of(self.optimizer)]
        owners = [number for number, count in enumerate(counts) for _ in range(count)]
        self._lines, self._parameters = lines, made
        self._objective_of = [owners[line.group] for line in lines]
        self._places = [
            frozenset(
                place
                for place, one in enumerate(self.shard.parameters)
                if one.offset < line.offset + line.nbytes and line.offset < one.offset + one.nbytes
            )
            for line in lines
        ]

    def note_unused(self, unused: frozenset[int], pot: int = 0) -> None:
        """Note which parameters have no gradient in an update that was added to a sum."""
        self._unused[pot] = self._unused[pot] & unused if pot in self._unused else unused

    def take_unused(self, pot: int = 0) -> frozenset[int]:
        """The parameters without a gradient in any update of a sum, which is taken next."""
        return self._unused.pop(pot, frozenset())

    def drop(self, pot: int) -> None:
        """Discard a sum, if there is one."""
        self._unused.pop(pot, None)
        super().drop(pot)

    def step(
        self,
        update: torch.Tensor,
        weight: float,
        blend: float = 1.0,
        dealt: int = 0,
        objective: int = 0,
        unused: frozenset[int] = frozenset(),
    ) -> None:
        """Take one optimizer step with an update, and the learning rates times `weight`.

        The update has the layout of the shard. Its buffers are a worker's running statistics: the
        shard's move towards them by `blend`, 1 / workers, so that with one worker they are equal.
        Learning rates are those after `dealt` samples. If the job has several objectives, the
        parameters of the others stay as they are. Parameters in `unused`, by their places, have no
        gradient: the optimizer leaves them as they are.
        """
        if any(places & unused and not places <= unused for places in self._places):
            self._merges = False
            self._give(self.shard.parameters)
        chosen = zip(self._parameters, self._lines, self._objective_of, self._places, strict=True)
        for parameter, fragment, owner, places in chosen:
            if owner == objective and not places <= unused:
                parameter.grad = fragment.view(update)
        if self._has_schedule and self._schedule is None:
            self._schedule = self._new_schedule()
        if self._schedule is not None:
            self._schedule.apply(self.optimizer, dealt)
        if objective in self._objective_of:
            stepped = parts_of(self.optimizer)[objective]
            weighted_step(stepped, weight * self._lr_factor(dealt))
        for parameter in self._parameters:
            parameter.grad = None
        for buffer, fragment in zip(self._buffers, self.shard.buffers, strict=True):
            buffer.lerp_(fragment.view(update), blend)

    def not_finite(self, update: torch.Tensor) -> NotFinite:
        """What an update of the shard has that is no finite number; empty for another payload."""
        return not_finite_in(self.shard, update) if update.nbytes == self.bytes.nbytes else ""

    def clip(self, mean: torch.Tensor) -> None:
        """Clip the norm of a mean update in place."""
        if self._clip is not None:
            clip_norm([fragment.view(mean) for fragment in self.shard.parameters], self._clip)

    def remember(self, sender: str) -> None:
        """Keep a copy of the parameters that a sender is given now."""
        if sender in self._remembered:
            self._remembered[sender].copy_(self.bytes)
        else:
            self._remembered[sender] = self.bytes.clone()

    def forget(self, sender: str) -> None:
        """Free the copy that was kept for a sender."""
        self._remembered.pop(sender, None)

    def forget_worker(self, worker: str) -> None:
        """Free what is kept for all incarnations of a worker."""
        for sender in {*self._remembered, *self.references.callers(), *self.refused}:
            if sender.partition(".")[0] == worker:
                self.forget(sender)
                self.references.forget(sender)
                self.refused.pop(sender, None)

    def recall(self, sender: str) -> torch.Tensor:
        """The copy that was kept for a sender."""
        return self._remembered[sender]

    def compensate(self, update: torch.Tensor, sender: str, factor: float) -> torch.Tensor:
        """The update with delay compensation: g + c·g²·(W − W_then)."""
        corrected, then = update.clone(), self._remembered.get(sender)
        if then is not None:
            for flat in self.shard.flat_by_dtype:
                gradient = flat.view(corrected)
                moved = flat.view(self.bytes) - flat.view(then)
                gradient.addcmul_(gradient * gradient, moved, value=factor)
        return corrected

    def named_state(self) -> tuple[list[TensorPart], dict[str, Any]]:
        """The optimizer's state by the names of the parameters, for a checkpoint."""
        lines = self._named_lines()
        sizes = sizes_of_parameters(self.layout)
        parts = list(named_entries(self.optimizer, lines, sizes))
        return parts, named_numbers(self.optimizer, lines)

    def load_named(self, stored: Checkpoint) -> None:
        """Continue with the optimizer's state of a checkpoint, of any strategy."""
        load_named(self.optimizer, self._named_lines(), stored)

    def _named_lines(self) -> Lines:
        return lines_of(
            list(zip(self._lines, self._parameters, strict=True)), self.shard.parameters
        )

    @property
    def nbytes(self) -> int:
        """Bytes of everything that `state` returns."""
        return sum(tensor.nbytes for tensor in self.state()[0].values())

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
        """The complete state for a successor: tensors (not copied), and plain numbers."""
        tensors = {"bytes": self.bytes}
        numbers: dict[str, object] = {}
        for index, parameter in enumerate(self._parameters):
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    tensors[f"{index}/{key}"] = value.contiguous()
                else:
                    numbers[f"{index}/{key}"] = value
        for pot, total in self._sums.items():
            tensors[f"sum {pot}"] = total
        if self._velocity is not None:
            tensors["velocity"] = self._velocity
        for sender, then in self._remembered.items():
            tensors[f"remembered {sender}"] = then
        for name, extra in self._extras.items():
            tensors[f"extra {name}"] = extra
        if self.revision:
            numbers["revision"] = self.revision
        if self.refused:
            numbers["refused"] = dict(self.refused)
        if self._lines is self.shard.parameters:
            numbers["apart"] = True
        if self._unused:
            numbers["unused"] = [[pot, sorted(these)] for pot, these in self._unused.items()]
        vectors, facts = self.references.state()
        return {**tensors, **vectors}, {**numbers, **facts}

    def restore(self, tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned.

        Args:
            tensors: each is read once, and all but `bytes` are used without a copy, so that the
                state need not be in memory twice.
            numbers: the plain numbers.
        """
        self.bytes.copy_(tensors["bytes"])
        if numbers.get("apart") and self._merges:
            self._merges = False
            self._give(self.shard.parameters)
        vectors: dict[str, torch.Tensor] = {}
        for name in tensors:
            if name.startswith("reference "):
                vectors[name] = tensors[name]
            elif name != "bytes":
                self._restore(name, tensors[name])
        for name, value in numbers.items():
            if name == "references":
                self.references.restore(vectors, value)
            elif name == "revision":
                self.revision = value
            elif name == "refused":
                self.refused = dict(value)
            elif name == "unused":
                self._unused = {pot: frozenset(these) for pot, these in value}
            elif name != "apart":
                self._restore(name, value)

    def _restore(self, name: str, value: Any) -> None:
        match name.partition(" "):
            case ("velocity", "", ""):
                self._velocity = value
            case ("remembered", _, sender):
                self._remembered[sender] = value
            case ("extra", _, extra):
                self._extras[extra] = value
            case ("sum", _, pot):
                self._sums[int(pot)] = value
            case _:
                index, _, key = name.partition("/")
                self.optimizer.state[self._parameters[int(index)]][key] = value
