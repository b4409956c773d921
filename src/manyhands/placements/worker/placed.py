"""Worker of `place`: some modules of the model on this worker, the others elsewhere.

All workers run the same program: the model's own forward. Where it calls a placed module, the
module's worker computes, and the other workers receive the result. Communication is asynchronous:
a call that another worker computes returns a pending tensor, and the first use of it waits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from manyhands.engine.tensors import leaves, memory_of
from manyhands.files.checkpoint import Entry, State
from manyhands.parameters.gradients import CalledModel, backward, build
from manyhands.placements.bound import Bound
from manyhands.placements.held import HeldTensor
from manyhands.placements.model.buffers import average_buffers, untouched
from manyhands.placements.model.materialize import aliases, make_some
from manyhands.placements.model.tied_parameters import check_owners
from manyhands.transport.mesh import Mesh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch.distributed import ProcessGroup, Work

    from manyhands.job import Job
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


class Placed(Bound):
    """The model with this worker's modules on its device, and the others on meta.

    Args:
        job: the job to train.
        group: the workers.
        device: the device of this worker's modules.
        waits: records every wait for another worker.
        owners: by module, the workers that compute it in turn.
    """

    def __init__(
        self,
        job: Job,
        group: Group,
        device: torch.device,
        waits: Waits,
        owners: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._group = group
        self._waits = waits
        self._job = job
        self._device = device
        self._owners = owners
        self.replica, self.replicas = 0, 1
        self.speaks = group.rank == 0
        handle = Mesh(group, {"place": group.size}, waits).handles["place"]
        self.model = make_some(
            partial(build, job), lambda name: group.rank in self._of(name), device
        )
        check_names(self.model, owners)
        check_owners(self.model, owners)
        self.words = tuple(
            f"worker {worker}: {', '.join(name for name in owners if worker in owners[name])}"
            for worker in range(group.size)
        )
        self._on_the_way = _PendingTensors()
        self._calls = [
            _Placement(self.model.get_submodule(name), several, handle, self._on_the_way)
            for name, several in owners.items()
        ]
        self._called = CalledModel(self.model, self._forward)
        self.optimizer = job.make_optimizer(self.model)
        self.steps_apart = group.size > 1
        self._shared = {
            name: group.part(f"place/{name}", several)
            for name, several in owners.items()
            if len(several) > 1 and group.rank in several
        }

    def _of(self, name: str) -> tuple[int, ...]:
        """The ranks that hold a parameter or buffer."""
        for module, several in self._owners.items():
            if name.startswith(f"{module}."):
                return several
        return tuple(range(self._group.size))

    def gradient(self, inputs: Any, targets: Any, weight: float, samples: int) -> torch.Tensor:
        """Run forward and backward on the modules' workers; then sum the gradients of copies."""
        with untouched(self.model, when=not weight), self._on_the_way:
            loss = backward(self._job, self._device, self._called, inputs, targets, samples, weight)
            self._on_the_way.wait()
        for name, group in self._shared.items():
            self._sum_gradients(self.model.get_submodule(name), group)
        return loss

    def _forward(self, *inputs: Any, **options: Any) -> Any:
        for call in self._calls:
            call.count = 0
        return self.model(*inputs, **options)

    def _sum_gradients(self, module: nn.Module, group: Group) -> None:
        """Sum over the copies of a module; a copy that was not called in this step adds zero."""
        trained = [one for one in module.parameters() if one.requires_grad]
        for one in trained:
            if one.grad is None:
                one.grad = torch.zeros_like(one)
        flat = torch.cat([one.grad.reshape(-1) for one in trained if one.grad is not None])
        self._waits.note("allreduce", flat.nbytes, group.size)
        self._waits.begin()
        group.sum(flat)
        self._waits.end()
        sizes = [one.numel() for one in trained]
        for one, total in zip(trained, flat.split_with_sizes(sizes), strict=True):
            one.grad = total.view_as(one)

    def clip(self, limit: float) -> None:
        """Clip by the norm over all workers' parameters, counting each parameter once."""
        consumed = {id(one) for one in self.consumed()}
        grads = {
            name: one.grad
            for name, one in self.model.named_parameters()
            if one.grad is not None and id(one) in consumed
        }
        squares = torch.zeros((), dtype=torch.float64, device=self._group.device)
        for name, grad in grads.items():
            if min(self._of(name)) == self._group.rank:
                squares += grad.double().square().sum()
        self._group.sum_small(squares)
        factor = float(torch.clamp(limit / (squares.sqrt() + 1e-6), max=1.0))
        for grad in grads.values():
            grad.mul_(factor)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The outputs, as in `outputs`."""
        with self._on_the_way:
            answers = self._forward(*inputs, **options)
            self._on_the_way.wait()
        return answers

    def outputs(self, inputs: Any) -> Any:
        """The outputs, available on all workers because all module outputs are broadcast."""
        with self._on_the_way:
            answers = self._forward(inputs)
            self._on_the_way.wait()
        return answers

    def average_buffers(self) -> None:
        """Average over the copies of each module that is on several workers."""
        for name, group in self._shared.items():
            average_buffers(self.model.get_submodule(name), group)

    def held(self) -> list[HeldTensor]:
        """The tensors of this worker's modules, and those that all workers have."""
        again = aliases(self.model)
        return [
            HeldTensor(name, tensor, min(self._of(name)) == self._group.rank)
            for name, tensor in self.model.state_dict(keep_vars=True).items()
            if name not in again and not tensor.is_meta
        ]

    def state(self) -> State:
        """The state, each tensor broadcast by its owner."""
        again = aliases(self.model)
        entries = {
            name: Entry(tensor.dtype, tuple(tensor.shape), self._fetch(name, tensor))
            for name, tensor in self.model.state_dict().items()
            if name not in again
        }
        return State(entries, {name: first for name, first in again.items() if first in entries})

    def _fetch(self, name: str, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        owners = self._of(name)

        def fetch() -> torch.Tensor:
            if len(owners) == self._group.size:
                return tensor.detach().cpu().contiguous()
            here = tensor.detach() if not tensor.is_meta else torch.empty(tensor.shape)
            told = here.to(self._group.device, tensor.dtype).contiguous()
            self._group.broadcast(told, owners[0])
            return told.cpu()

        return fetch


def check_names(model: nn.Module, names: Iterable[str]) -> None:
    """Raise ValueError for modules that the model does not have."""
    known = dict(model.named_modules())
    for name in names:
        if name not in known:
            children = ", ".join(child for child, _ in model.named_children())
            raise ValueError(
                f"{type(model).__name__} has no module {name!r}: its modules are {children}"
            )


class _PendingTensors(TorchFunctionMode):
    """Tensors that are still being received; while active, every use of one waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self._works: dict[int, tuple[Work, torch.Tensor]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Wait for the pending tensors among a function's arguments."""
        if self._works:
            self.wait(leaves((args, kwargs)))
        return func(*args, **(kwargs or {}))

    def expect(self, tensor: torch.Tensor, work: Work) -> None:
        """Register a tensor that is complete when the work is done."""
        self._works[memory_of(tensor)] = work, tensor

    def wait(self, tensors: list[torch.Tensor] | None = None) -> None:
        """Wait for these tensors, or for all."""
        keys = list(self._works) if tensors is None else [memory_of(one) for one in tensors]
        for key in keys:
            if key in self._works:
                self._works.pop(key)[0].wait()


@dataclass(eq=False)
class _Placement:
    """Replacement of a placed module's forward: its workers compute the calls in turn."""

    module: nn.Module
    owners: tuple[int, ...]
    handle: ProcessGroup
    on_the_way: _PendingTensors
    count: int = 0
    """Number of its calls in this forward pass."""
    shapes: dict[tuple[Any, ...], torch.Tensor] = field(default_factory=dict)
    """Outputs on the meta device, by the shapes of the inputs."""
    anchor: torch.Tensor = field(default_factory=lambda: torch.zeros((), requires_grad=True))
    """Makes autograd expect a gradient on all workers, whether or not they hold parameters."""

    def __post_init__(self) -> None:
        self.compute = self.module.forward
        self.module.forward = self

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        owner = self.owners[self.count % len(self.owners)]
        self.count += 1
        mine = owner == self.handle.rank()
        if mine:
            self.on_the_way.wait(leaves(inputs))
        call = _Call(self, owner, mine, torch.is_grad_enabled())
        outputs: torch.Tensor = _RemoteCall.apply(  # type: ignore[no-untyped-call]  # torch's
            call, self.anchor, *inputs
        )
        return outputs


@dataclass(frozen=True, eq=False)
class _Call:
    """One call of a placed module."""

    placement: _Placement
    owner: int
    mine: bool
    learns: bool

    def tell(self, tensor: torch.Tensor) -> Work:
        """Broadcast a tensor from the worker that computes this call."""
        return self.placement.handle.broadcast(tensor, root=self.owner)

    def shape(self, inputs: tuple[Any, ...]) -> torch.Tensor:
        """The output's shape, on the meta device."""
        known, module = self.placement.shapes, self.placement.module
        key = tuple(
            (one.shape, one.dtype) if isinstance(one, torch.Tensor) else one for one in inputs
        )
        if key not in known:
            absent = {
                name: torch.empty_like(tensor, device="meta")
                for name, tensor in (*module.named_parameters(), *module.named_buffers())
            }
            given = tuple(
                torch.empty_like(one, device="meta") if isinstance(one, torch.Tensor) else one
                for one in inputs
            )
            module.forward = self.placement.compute
            known[key] = self.checked(functional_call(module, absent, given))
            module.forward = self.placement
        return known[key]

    def checked(self, outputs: Any) -> torch.Tensor:
        """The output, which must be a single tensor to be broadcast."""
        if not isinstance(outputs, torch.Tensor):
            raise TypeError(
                f"a placed {type(self.placement.module).__name__} must return one tensor, got "
                f"{type(outputs).__name__}: place a module around it that does"
            )
        return outputs


class _RemoteCall(torch.autograd.Function):
    """A call that one worker computes, forward and backward, and broadcasts."""

    @staticmethod
    def forward(ctx: Any, call: _Call, anchor: torch.Tensor, *inputs: Any) -> torch.Tensor:
        ctx.call = call
        ctx.like = [one if isinstance(one, torch.Tensor) else None for one in inputs]
        if not call.mine:
            like = call.shape(inputs)
            heard = torch.empty(like.shape, dtype=like.dtype, device=anchor.device)
            call.placement.on_the_way.expect(heard, call.tell(heard))
            return heard
        with torch.set_grad_enabled(call.learns):
            given = [
                one.detach().requires_grad_(one.requires_grad)
                if isinstance(one, torch.Tensor)
                else one
                for one in inputs
            ]
            outputs = call.checked(call.placement.compute(*given))
        ctx.given, ctx.outputs = given, outputs
        told = outputs.detach().contiguous()
        call.placement.on_the_way.expect(told, call.tell(told))
        return told.view_as(told)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        call: _Call = ctx.call
        if call.mine and ctx.outputs.requires_grad:
            torch.autograd.backward(ctx.outputs, gradient)
        found: list[torch.Tensor | None] = []
        for number, like in enumerate(ctx.like):
            if like is None or not ctx.needs_input_grad[2 + number]:
                found.append(None)
                continue
            own = ctx.given[number].grad if call.mine else None
            told = torch.zeros_like(like) if own is None else own.contiguous()
            call.tell(told).wait()
            found.append(told)
        return None, None, *found
