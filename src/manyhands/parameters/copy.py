"""A worker's copy of the model, with parameters laid out as in the servers' shards."""

from __future__ import annotations

import contextlib
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from manyhands.job.optimizers import TrainedParameters
from manyhands.parameters.arithmetic import not_finite_in
from manyhands.parameters.gradients import CalledModel, backward
from manyhands.parameters.initial.shard_values import make
from manyhands.parameters.layout import Layout
from manyhands.parameters.optional.clipping import MeanOf, clip_norm, norm
from manyhands.parameters.optional.compilation import compile_in_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from manyhands.codecs.kernels.finite import NotFinite
    from manyhands.job import Job

    Fill = Callable[[torch.Tensor], None]

_NOTHING = 1e-300
"""The weight of a batch without any counted target: 0 would stand for its samples."""
_ALIGNMENT = 64
"""Alignment of flat tensors in bytes."""


class Copy:
    """The model's parameters in one flat byte tensor, and a second one for the update.

    `parameters[s]` and `updates[s]` are exchanged with server s. They are views, so that a pull is
    received in place and a push is sent without a copy.

    Args:
        job: the job that defines the model.
        servers: number of shards.
        device: the device of the model. Exchanged tensors are in the host's memory.
        allocate: allocates a number of bytes of host memory; by default private memory.
        home: allocates the memory of the parameters, which processes may share. It initialises
            that memory with the given function, unless another process has done so before.
        beside: whether to allocate a second buffer for parameters.
        clip: the largest norm of an update; None if servers clip.
    """

    def __init__(
        self,
        job: Job,
        servers: int,
        device: torch.device,
        allocate: Callable[[int], torch.Tensor] | None = None,
        home: Callable[[int, Fill], torch.Tensor] | None = None,
        *,
        beside: bool = False,
        clip: float | None = None,
    ) -> None:
        self.job, self._jobs = job, job.one_by_one
        self._adding_up = False
        self._clip = clip
        self._takes_norms = "gradient_norm" in job.measures
        self.norms = MeanOf()
        """Norms of the gradients before clipping, if the job measures them."""
        self.model, optimizer = make(job)
        self.layout = Layout.of(self.model, optimizer, servers)
        self.rate = float(optimizer.param_groups[0]["lr"])
        """The initial learning rate of the optimizer."""
        self.model.to(device)
        self._device = device
        size = self.layout.nbytes
        aligned = -(-size // _ALIGNMENT) * _ALIGNMENT
        first = aligned if home is None else 0
        room = (allocate or _zeros)(first + beside * aligned + size)
        if home is None:
            self._host = room[:size]
            self._fill(self._host)
        else:
            self._host = home(size, self._fill)
        self._flat = self._host if device.type == "cpu" else self._host.to(device)
        self.parameters = self.layout.split(self._host)
        self.updates = self.layout.split(room[first : first + size])
        self.beside = self.layout.split(room[first + aligned :]) if beside else []
        self._missing: list[int] = []
        self._arrived: set[str] = set()
        self._factor: torch.Tensor | None = None
        """The factor of accumulated gradients."""
        self._called = CalledModel(self.model, self._forward, self._within)
        self._trained = TrainedParameters(self.model, optimizer)
        self._ready: Callable[[int], object] = _ignore
        self._gradients: dict[str, list[tuple[int, torch.Tensor, int, int]]] = {}
        self._place_of = [
            {fragment.name: place for place, fragment in enumerate(shard.parameters)}
            for shard in self.layout.shards
        ]
        self.unused: list[tuple[int, ...]] = [() for _ in self.layout.shards]
        """By shard, the parameters without a gradient in the last update, by their place."""
        self._place()
        compile_in_place(job, self.model)

    @property
    def places(self) -> list[tuple[str, torch.Size, torch.dtype, int, int]]:
        """Name, shape and dtype of every parameter, and its bytes in the flat tensor."""
        named, places, begin = dict(self.model.named_parameters()), [], 0
        for shard in self.layout.shards:
            for fragment in shard.parameters:
                if fragment.start == 0:
                    own, at = named[fragment.name], begin + fragment.offset
                    places.append((fragment.name, own.shape, own.dtype, at, at + own.nbytes))
            begin += shard.nbytes
        return places

    @property
    def changes_gradients(self) -> bool:
        """Whether gradients are clipped, or their norms taken."""
        return self._clip is not None or self._takes_norms

    @torch.no_grad()
    def _fill(self, flat: torch.Tensor) -> None:
        """Write the model's parameters and buffers into a flat tensor."""
        for parameter, view in self._views(flat):
            view.copy_(parameter)
        self.note_buffers(self.layout.split(flat)[-1])

    def _views(self, flat: torch.Tensor) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
        """Every parameter of the model, and its view in a flat tensor."""
        named = dict(self.model.named_parameters())
        for name, shape, dtype, start, stop in self.places:
            yield named[name], flat[start:stop].view(dtype).view(shape)

    def _place(self) -> None:
        """Make the model's parameters views of the flat tensor, and collect its gradients."""
        named = dict(self.model.named_parameters())
        for parameter, view in self._views(self._flat):
            parameter.data = view
        for shard, update in zip(self.layout.shards, self.updates, strict=True):
            for fragment in shard.parameters:
                pieces = self._gradients.setdefault(fragment.name, [])
                target = fragment.view(update).view(-1)
                pieces.append((shard.number, target, fragment.start, fragment.stop))
        for name in self._gradients:
            named[name].register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                self._keeper(name)
            )

    def _keeper(self, name: str) -> Callable[[torch.Tensor], None]:
        """A hook that stores a gradient in `updates`, and reports when a shard is complete."""
        # The garbage collector does not traverse a parameter's hooks: a hook that references this
        # copy would keep it, and the model, alive until the process ends.
        copy = weakref.ref(self)

        def keep(parameter: torch.Tensor) -> None:
            ours = copy()
            if ours is None or ours._adding_up:
                return
            ours._put(name, parameter.grad)
            parameter.grad = None

        return keep

    def _put(self, name: str, gradient: torch.Tensor | None) -> None:
        self._arrived.add(name)
        for shard, target, start, stop in self._gradients[name]:
            if gradient is None:
                target.zero_()
                self.unused[shard] += (self._place_of[shard][name],)
            else:
                piece = gradient.detach().reshape(-1)[start:stop]
                target.copy_(piece if self._factor is None else piece * self._factor)
            self._missing[shard] -= 1
            if self._missing[shard] == 0:
                self._ready(shard)

    def gradient(
        self,
        inputs: Any,
        targets: Any,
        samples: int,
        ready: Callable[[int], object] | None = None,
        check: Callable[[torch.Tensor], object] | None = None,
        weigh: Callable[[float], object] | None = None,
        objective: int = 0,
    ) -> torch.Tensor:
        """Compute the gradient of the mean loss of so many samples into `updates`; return the loss.

        `ready(s)` is called as soon as the update of shard s is complete, while the backward pass
        still computes other shards. If updates are clipped, it is called when all are complete,
        because the factor depends on all of them. `check(loss)` is called before the
        backward pass, when nothing has been sent yet; it may raise. `weigh(weight)` is called
        before the last backward pass if the loss has a weight that is not its number of samples.
        If the job has several objectives, the gradient is that of one of them, and 0 for the
        parameters of the others. A parameter without a gradient is 0 in `updates`, and named in
        `unused`.
        """
        ready, complete = ready or _ignore, list[int]()
        self._ready = ready if self._clip is None else complete.append
        self._missing = [len(shard.parameters) for shard in self.layout.shards]
        self._arrived.clear()
        self.unused = [() for _ in self.layout.shards]
        self._factor = None
        if len(self._jobs) > 1:
            self._trained.choose(objective)
        loss = backward(
            self._jobs[objective],
            self._device,
            self._called,
            inputs,
            targets,
            samples,
            more_to_come=self._more_to_come,
            check=check,
            settle=partial(self._settle, weigh or _ignore, samples),
        )
        self._fill_unused()
        if self._takes_norms or self._clip is not None:
            gradients = [piece[1] for pieces in self._gradients.values() for piece in pieces]
            if self._takes_norms:
                self.norms.add(norm(gradients))
            if self._clip is not None:
                clip_norm(gradients, self._clip)
        for shard in complete:
            ready(shard)
        return loss

    def _settle(
        self,
        weigh: Callable[[float], object],
        samples: int,
        weight: torch.Tensor,
        factor: torch.Tensor,
    ) -> None:
        """Report the weight of a batch; keep the factor of the gradients that were accumulated."""
        if float(weight) != samples:
            weigh(float(weight) or _NOTHING)
        self._factor = None if float(factor) == 1 else factor.to(self._device)

    def _forward(self, *inputs: Any, **options: Any) -> Any:
        """The model's outputs; its buffers are stored before the last gradient is complete."""
        outputs = self.model(*inputs, **options)
        self.note_buffers(self.updates[-1])
        return outputs

    def _within(self, objective: Callable[[Any, Any], Any], model: Any, batch: Any) -> Any:
        """What an objective returns; it may have called parts of the model, which have buffers."""
        found = objective(model, batch)
        self.note_buffers(self.updates[-1])
        return found

    @contextlib.contextmanager
    def _more_to_come(self) -> Iterator[None]:
        """Context in which gradients are accumulated in the parameters."""
        self._adding_up = True
        yield
        self._adding_up = False

    def note_buffers(self, last: torch.Tensor) -> None:
        """Store the model's buffers in the bytes of the last shard."""
        if not self.layout.shards[-1].buffers:
            return
        buffers = dict(self.model.named_buffers())
        for fragment in self.layout.shards[-1].buffers:
            # As bytes: a wider dtype than the parameters' may be unaligned in the flat tensor.
            fragment.bytes(last).copy_(_bytes(buffers[fragment.name]))

    def _fill_unused(self) -> None:
        """Store gradients of parameters that the last micro-batch did not use.

        They have the gradient of earlier micro-batches, or none if none used them.
        """
        if not any(self._missing):
            return
        named = dict(self.model.named_parameters())
        for name in self._gradients.keys() - self._arrived:
            self._put(name, named[name].grad)
            named[name].grad = None

    def not_finite(self) -> NotFinite:
        """What the update has that is no finite number."""
        found = map(not_finite_in, self.layout.shards, self.updates)
        return next((one for one in found if one), "")

    def received(self) -> None:
        """Copy received parameters to the model's device, if it is another one."""
        if self._host is not self._flat:
            self._flat.copy_(self._host)

    def adopt_buffers(self) -> None:
        """Copy the shared buffers of the last shard into the model."""
        buffers = dict(self.model.named_buffers())
        with torch.no_grad():
            for fragment in self.layout.shards[-1].buffers:
                own = fragment.bytes(self.parameters[-1]).clone().view(fragment.dtype)
                buffers[fragment.name].copy_(own.view(fragment.shape))


def _zeros(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


def _ignore(_: float) -> None:
    pass
