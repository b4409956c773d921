"""A worker's copy of the model, laid out as the servers' shards are."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

import torch

from manyhands.parameters.clipping import clip_norm
from manyhands.parameters.gradients import backward
from manyhands.parameters.initial.shard_values import make
from manyhands.parameters.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from manyhands.job import Job

    Fill = Callable[[torch.Tensor], None]

_ALIGNMENT = 64
"""Bytes on whose multiples stretches begin."""


class Copy:
    """The model's parameters in one stretch of bytes, and beside it one for the update.

    `parameters[s]` and `updates[s]` are what is exchanged with server s: views, so that a pull is
    received in place and a push is sent from where it lies.

    Args:
        job: whose model.
        servers: how many shards.
        device: where the model computes. What is exchanged lies in the host's memory.
        allocate: gives so many bytes of it; by default of this process's own.
        home: gives so many bytes that hold the parameters, where others may use them too. It
            fills them by the function it is given, unless somebody has done so before.
        beside: whether there is room for somebody else's parameters.
        clip: the norm that an update may have; None where servers see to it.
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
        self._job = job
        self._adding_up = False
        self._clip = clip
        self.model, optimizer = make(job)
        self.layout = Layout.of(self.model, optimizer, servers)
        self.rate = float(optimizer.param_groups[0]["lr"])
        """The learning rate that the optimizer begins with."""
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
        self._ready: Callable[[int], object] = _ignore
        self._gradients: dict[str, list[tuple[int, torch.Tensor, int, int]]] = {}
        self._place()

    @torch.no_grad()
    def _fill(self, flat: torch.Tensor) -> None:
        """Write the model's parameters and buffers into a stretch."""
        for parameter, view in self._views(flat):
            view.copy_(parameter)
        self.note_buffers(self.layout.split(flat)[-1])

    def _views(self, flat: torch.Tensor) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
        """Every parameter of the model, and where it lies in a stretch."""
        named = dict(self.model.named_parameters())
        begin = 0
        for shard in self.layout.shards:
            for fragment in shard.parameters:
                if fragment.start == 0:
                    parameter = named[fragment.name]
                    at = begin + fragment.offset
                    stretch = flat[at : at + parameter.numel() * parameter.element_size()]
                    yield parameter, stretch.view(parameter.dtype).view(parameter.shape)
            begin += shard.nbytes

    def _place(self) -> None:
        """Have the model compute where the stretch is, and its gradients put beside it."""
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
        """Put a gradient where it will be sent from; say when a shard has all of its own."""
        # The garbage collector does not see through a parameter's hooks: one that held this copy
        # would keep it, and the model, for as long as the process lives.
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
            else:
                target.copy_(gradient.detach().reshape(-1)[start:stop])
            self._missing[shard] -= 1
            if self._missing[shard] == 0:
                self._ready(shard)

    def gradient(
        self,
        inputs: Any,
        targets: Any,
        ready: Callable[[int], object] | None = None,
        check: Callable[[torch.Tensor], object] | None = None,
    ) -> torch.Tensor:
        """Put the gradient of the mean loss into `updates`; the loss.

        `ready(s)` is called as soon as the update of shard s is complete, while the backward
        pass still computes the others'. If updates are clipped, that is when all are: one factor
        scales them, and it is known last. `check(loss)` is called before the backward pass, when
        nothing is sent yet; it may raise.
        """
        ready, complete = ready or _ignore, list[int]()
        self._ready = ready if self._clip is None else complete.append
        self._missing = [len(shard.parameters) for shard in self.layout.shards]
        self._arrived.clear()
        loss = backward(
            self._job,
            self._device,
            self._forward,
            inputs,
            targets,
            more_to_come=self._more_to_come,
            check=check,
        )
        self._fill_unused()
        if self._clip is not None:
            clip_norm(
                [piece[1] for pieces in self._gradients.values() for piece in pieces], self._clip
            )
        for shard in complete:
            ready(shard)
        return loss

    def _forward(self, inputs: Any) -> Any:
        """What the model gives; its buffers are ready before the last gradient is."""
        outputs = self.model(inputs)
        self.note_buffers(self.updates[-1])
        return outputs

    @contextlib.contextmanager
    def _more_to_come(self) -> Iterator[None]:
        """Let gradients of a part of a batch add up where they are."""
        self._adding_up = True
        yield
        self._adding_up = False

    def note_buffers(self, last: torch.Tensor) -> None:
        """Write the model's buffers into the bytes of the last shard."""
        if not self.layout.shards[-1].buffers:
            return
        buffers = dict(self.model.named_buffers())
        for fragment in self.layout.shards[-1].buffers:
            # As bytes: a wider type than the parameters' need not be aligned in the whole stretch.
            fragment.bytes(last).copy_(_bytes(buffers[fragment.name]))

    def _fill_unused(self) -> None:
        """A parameter that the last part does not use has the gradient of the parts before it.

        If no part uses it, its gradient is zero.
        """
        if not any(self._missing):
            return
        named = dict(self.model.named_parameters())
        for name in self._gradients.keys() - self._arrived:
            self._put(name, named[name].grad)
            named[name].grad = None

    def received(self) -> None:
        """New parameters lie in `parameters`: let the model see them, wherever it computes."""
        if self._host is not self._flat:
            self._flat.copy_(self._host)

    def adopt_buffers(self) -> None:
        """Take over the shared buffers that came with the parameters of the last shard."""
        buffers = dict(self.model.named_buffers())
        with torch.no_grad():
            for fragment in self.layout.shards[-1].buffers:
                own = fragment.bytes(self.parameters[-1]).clone().view(fragment.dtype)
                buffers[fragment.name].copy_(own.view(fragment.shape))


def _zeros(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


def _ignore(_: int) -> None:
    pass
