"""Worker of `context`: a whole replica that computes a shard of every sequence."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from manyhands.engine.fake_tensors import is_fake
from manyhands.parameters.gradients import Checkpointed, backward
from manyhands.parameters.module_units import units
from manyhands.parameters.weights.loss_weight import counting
from manyhands.placements.model.buffers import untouched
from manyhands.placements.worker.whole_model import WholeModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn
    from torch.distributed import ProcessGroup

    from manyhands.job import Job
    from manyhands.transport.collectives import Group
    from manyhands.transport.mesh import Mesh
    from manyhands.transport.waits import Waits

_TRIED = 4
"""Positions per worker in the sequence on which the model is tried."""


class SequenceShard(WholeModel):
    """A replica that, from one module on, computes only this worker's shard of a sequence.

    Sequences are divided along dim 1 of that module's input, and targets along theirs. Whether the
    model allows that is tested once: a short sequence computed in shards must give the same outputs
    as a whole one.

    Args:
        job: the job to train.
        group: all workers.
        device: the device of the replica.
        waits: see `WholeModel`.
        wrap: see `WholeModel`.
        mesh: a mesh with the axes "data" and "context".
        before: the name of the module; if empty, the first of the repeated units.
    """

    whole_gradient = False

    def __init__(
        self,
        job: Job,
        group: Group,
        device: torch.device,
        waits: Waits,
        wrap: Callable[[nn.Module], nn.Module],
        mesh: Mesh,
        before: str,
    ) -> None:
        job, self._loss = counting(job)
        super().__init__(job, group, device, waits, wrap)
        self.replica, self.replicas = mesh.place["data"], mesh.axes["data"]
        self.speaks = mesh.place["context"] == 0
        self._rank, self._ways = mesh.place["context"], mesh.axes["context"]
        self._handle = mesh.handles["context"]
        self._context = mesh.groups["context"]
        self._mode = _AttentionAllToAll(self._handle, self._ways)
        self._active = False
        self._dim = -1
        first = first_divided(self.model, before)
        first.register_forward_pre_hook(self._divide)
        for unit in units(self.model):
            if isinstance(unit.forward, Checkpointed):
                unit.forward.compute = self._computing(unit.forward.compute)

    def gradient(self, inputs: Any, targets: Any, weight: float, samples: int) -> torch.Tensor:
        """The loss of this worker's shards; DDP averages gradients over all workers."""
        if self._dim < 0:
            self._try_out(inputs)
        with untouched(self.model, when=not weight):
            mean = backward(
                self._job,
                self._device,
                self._forward,
                inputs,
                self._part(targets),
                samples,
                weight,
                self._more_to_come,
                agree=self._agree,
            )
        if self._last is not None and not self._last.settled:
            self._last.settle()
            self._check_unused()
        return mean

    def _agree(self, mean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Weight the mean loss of this shard by its counted targets; also the mean over all.

        The third item is the number of all counted targets.

        Padding is mostly at the end of a sequence, so shards differ in how many targets count.
        """
        own = self._loss.sums(mean.reshape(()), 1)
        summed = own.clone()
        self._handle.allreduce([summed]).wait()
        counted, total = summed
        divisor = torch.where(counted > 0, counted, 1)
        return own[0] * self._ways / divisor, total / divisor, counted.double()

    def _forward(self, inputs: Any) -> Any:
        with self._divided():
            return self.module(inputs)

    def _computing(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """A block with all-to-all when it is computed and when it is recomputed."""

        def exchanging(*inputs: Any, **options: Any) -> Any:
            if self._active or not torch.is_grad_enabled():
                return compute(*inputs, **options)
            with self._mode:
                return compute(*inputs, **options)

        return exchanging

    def outputs(self, inputs: Any) -> Any:
        """The outputs of all workers' shards, concatenated."""
        if self._dim < 0:
            self._try_out(inputs)
        with self._divided():
            own = self.model(inputs).contiguous()
        shards = own.new_empty(self._ways, *own.shape)
        self._context.gather(shards, own)
        return torch.cat(list(shards), dim=self._dim)

    @contextlib.contextmanager
    def _divided(self) -> Iterator[None]:
        self._active = True
        try:
            with self._mode:
                yield
        finally:
            self._active = False

    def _divide(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._part(inputs[0]), *inputs[1:]) if self._active else inputs

    def _part(self, tensor: torch.Tensor) -> torch.Tensor:
        length = tensor.shape[1]
        if length % self._ways:
            raise ValueError(
                f"a sequence of {length} positions is not divisible by ways={self._ways}: choose "
                "another length, or another number of ways"
            )
        return tensor.chunk(self._ways, dim=1)[self._rank]

    @torch.no_grad()
    def _try_out(self, inputs: torch.Tensor) -> None:
        """Compute a short sequence whole and in shards, and find the dim of its positions."""
        short = inputs[:1, : _TRIED * self._ways]
        training = self.model.training
        self.model.eval()
        with untouched(self.model, when=True):
            whole = self.model(short)
            part = self._try_part(short)
        self.model.train(training)
        dims = [
            dim
            for dim, (all_, own) in enumerate(zip(whole.shape, part.shape, strict=True))
            if all_ != own
        ]
        expected = whole.chunk(self._ways, dim=dims[0])[self._rank] if len(dims) == 1 else None
        if expected is None or not (is_fake() or torch.allclose(part, expected, 1e-3, 1e-4)):
            raise ValueError(
                f"{type(self.model).__name__} gives different outputs if its sequences are divided."
                " Positions must be added before the first repeated module (or name another one: "
                'before="block1"), and only scaled_dot_product_attention may combine positions'
            )
        self._dim = dims[0]

    def _try_part(self, short: torch.Tensor) -> torch.Tensor:
        """The outputs of this worker's part of a sequence.

        Raises:
            ValueError: the model cannot compute it.
        """
        try:
            with self._divided():
                part: torch.Tensor = self.model(short)
        except RuntimeError as error:
            raise ValueError(
                f"{type(self.model).__name__} cannot compute a part of a sequence: "
                f"{str(error).splitlines()[0]}. From the first repeated module on, the length must "
                "be read from what that module returns, not from the inputs of the model. Use "
                "fully_sharded(), or a sequence of the model's blocks (nn.Sequential)"
            ) from error
        return part


def first_divided(model: nn.Module, before: str) -> nn.Module:
    """The module before which sequences are divided: by name, or the first repeated one.

    Raises:
        ValueError: there is none.
    """
    if not before:
        return _first_that_repeats(model)
    known: dict[str, nn.Module] = dict(model.named_modules())
    if before not in known:
        children = ", ".join(name for name, _ in model.named_children())
        raise ValueError(
            f"{type(model).__name__} has no module {before!r} before which sequences could be "
            f"divided: its modules are {children}"
        )
    return known[before]


def _first_that_repeats(model: nn.Module) -> nn.Module:
    """The first unit that is followed by another one of its type."""
    found = units(model)
    for unit, following in itertools.pairwise(found):
        if type(unit) is type(following):
            return unit
    raise ValueError(
        f"{type(model).__name__} has no repeated modules: name the module before which sequences "
        'are divided, as in context(before="encoder")'
    )


class _AttentionAllToAll(TorchFunctionMode):
    """While active, attention computes some heads of all positions, with all-to-all around it."""

    def __init__(self, handle: ProcessGroup, ways: int) -> None:
        super().__init__()
        self._handle = handle
        self._ways = ways

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an all-to-all before attention and after it."""
        kwargs = kwargs or {}
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        query, key, value, *rest = args
        if rest or kwargs.get("attn_mask") is not None:
            raise ValueError(
                "context() supports attention without a mask or with is_causal=True: leave out "
                "attn_mask"
            )
        heads = query.shape[1]
        if heads % self._ways or not query.shape == key.shape == value.shape:
            raise ValueError(
                f"{heads} heads are not divisible by ways={self._ways}: choose another number of "
                "ways"
            )
        stacked = _exchanged(torch.stack([query, key, value]), self._handle, 2, 3)
        seen = func(*stacked, **kwargs)
        return _exchanged(seen, self._handle, 2, 1)


def _exchanged(tensor: torch.Tensor, handle: ProcessGroup, given: int, got: int) -> torch.Tensor:
    exchanged: torch.Tensor = _Exchange.apply(  # type: ignore[no-untyped-call]  # torch's
        tensor, handle, given, got
    )
    return exchanged


class _Exchange(torch.autograd.Function):
    """All-to-all: send parts along one dim, receive along another; reversed in the backward."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, handle: ProcessGroup, given: int, got: int
    ) -> torch.Tensor:
        ctx.handle, ctx.given, ctx.got = handle, given, got
        return _exchange(tensor, handle, given, got)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _exchange(gradient, ctx.handle, ctx.got, ctx.given), None, None, None


def _exchange(tensor: torch.Tensor, handle: ProcessGroup, given: int, got: int) -> torch.Tensor:
    ways = handle.size()
    parts = torch.stack(tensor.chunk(ways, dim=given))
    arrived = torch.empty_like(parts)
    handle.all_to_all_single(arrived, parts, [], []).wait()
    return torch.cat(list(arrived), dim=got)
