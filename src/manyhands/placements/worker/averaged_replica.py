"""A replica whose gradients are averaged after the backward pass, in memory that workers share.

DistributedDataParallel sums a bucket of gradients while others are still computed. That hides the
network behind computation. Sums in shared memory take the same cores as the computation, so there
is nothing to hide; and what DDP does around them takes as long as they do in a small model.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from manyhands.engine.groups import begin_alike
from manyhands.failure import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch.utils.hooks import RemovableHandle

    from manyhands.transport.collectives import Group
    from manyhands.transport.shared.sums import SharedSum
    from manyhands.transport.waits import Waits


class AveragedReplica(nn.Module):
    """A module whose gradients are averaged when `reducing` ends.

    Gradients are copied into a vector of all gradients, and are parts of that vector from then on:
    in a small model all at once, which takes less time, and otherwise each as soon as it is
    computed, so that none is held twice for a moment.

    Args:
        module: the module; gradients of its parameters that require one are averaged.
        shared: averages vectors.
        group: the workers, each with such a module.
        waits: counts the payload, and the time in which gradients are averaged.
        equal: whether the modules of all workers have the same values; by default they get those
            of the first worker's.
        spare: bytes of gradients that may be held twice.
    """

    sums = "in memory that the workers share"
    """Where gradients are summed."""

    def __init__(
        self,
        module: nn.Module,
        shared: SharedSum,
        group: Group,
        waits: Waits,
        *,
        equal: bool,
        spare: int = 0,
    ) -> None:
        super().__init__()
        self.module = module
        self._shared, self._waits, self._workers = shared, waits, group.size
        trained = [(name, one) for name, one in module.named_parameters() if one.requires_grad]
        self._trained = trained
        begin_alike(module, group.handle, equal=equal)
        self._vectors: list[torch.Tensor] = []
        self._parts: list[tuple[nn.Parameter, torch.Tensor]] = []
        self._handles: list[RemovableHandle] = []
        small = sum(one.nbytes for _, one in trained) <= spare
        self._collects = False
        self._finite = False
        for dtype in dict.fromkeys(one.dtype for _, one in trained):
            some = [one for _, one in trained if one.dtype == dtype]
            vector = torch.empty(sum(one.numel() for one in some), dtype=dtype)
            self._vectors.append(vector)
            begin = 0
            for one in some:
                # In the order in which its numbers are in memory, as gradients are.
                part = vector.as_strided(one.shape, torch.empty_like(one).stride(), begin)
                begin += one.numel()
                if small:
                    self._parts.append((one, part))
                    continue
                hook = one.register_post_accumulate_grad_hook(self._collector(part))  # type: ignore[no-untyped-call]
                self._handles.append(hook)

    def _collector(self, part: torch.Tensor) -> Callable[[torch.Tensor], None]:
        """What moves a gradient into its part of the vector."""

        def collect(parameter: torch.Tensor) -> None:
            gradient = parameter.grad
            if self._collects and gradient is not None and gradient is not part:
                part.copy_(gradient)
                parameter.grad = part

        return collect

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """What the module returns."""
        return self.module(*inputs, **options)

    @contextlib.contextmanager
    def reducing(self) -> Iterator[None]:
        """Context of a step's backward passes; gradients are averaged when it ends.

        Raises:
            PeerLost: another worker is lost.
            RuntimeError: a parameter has no gradient.
        """
        self._collects = True
        try:
            yield
        finally:
            self._collects = False
        unused = [name for name, one in self._trained if one.grad is None]
        if unused:
            raise unused_parameters(unused)
        if self._parts:
            parts = [part for _, part in self._parts]
            gradients = [one.grad for one, _ in self._parts]
            torch._foreach_copy_(parts, gradients)  # type: ignore[arg-type]  # none is None
            for one, part in self._parts:
                one.grad = part
        for vector in self._vectors:
            self._waits.tally("allreduce", vector.nbytes, self._workers)
        # From the last gradient on, the rest of a step is a wait.
        self._waits.begin()
        averaged = [self._shared.average(vector) for vector in self._vectors]
        self._finite = all(averaged)

    def take_finite(self) -> bool:
        """Whether the gradient that was averaged last is known to be finite; once for each."""
        known, self._finite = self._finite, False
        return known

    def close(self) -> None:
        """Collect no more gradients."""
        for handle in self._handles:
            handle.remove()


def unused_parameters(names: Iterable[str]) -> Refused:
    """The error of a loss that does not depend on all parameters."""
    named = list(names)
    return Refused(
        f"the loss does not depend on {len(named)} parameters: {', '.join(named[:8])}"
        f"{', …' if len(named) > 8 else ''}; freeze them with requires_grad_(False), or "
        "use allreduce(find_unused=true) if they are unused only in some steps"
    )
