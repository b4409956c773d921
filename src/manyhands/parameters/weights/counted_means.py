"""Means over targets: the calls that compute them, what they divide by, and where they are made.

`cross_entropy` and `nll_loss` divide by the targets that are not `ignore_index`, or by the weights
of their classes. That number is known only inside the loss, so the calls are intercepted there
(`docs/decisions/0038-means-over-targets-that-count.md`).
"""

from __future__ import annotations

import sys
import zlib
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

WATCHED: Final = {functional.cross_entropy, functional.nll_loss}
"""Functions that compute a mean over targets."""
_POSITIONAL: Final = 6
"""Positional arguments before `reduction`."""
_SITES: Final = 1 << 20
"""Numbers of places in scripts: their squares, summed over workers, are exact in float64."""
_OURS: Final = ("torch.", "manyhands.parameters.")


@dataclass(eq=False, slots=True)
class CountedMean:
    """A mean over targets that a loss has computed."""

    value: torch.Tensor
    counted: torch.Tensor
    """What it was divided by: a number of targets, or the sum of the weights of their classes."""
    targets: int
    """All targets, whether they count or not."""
    by_class: bool
    """Whether classes have weights."""
    site: int
    """The number of the line of the script that called it."""


class WatchedLoss(TorchFunctionMode):
    """While active, notes the means over targets that are computed.

    A mean that is computed without gradients within a loss that has them, to be printed, is no part
    of the loss.
    """

    def __init__(self) -> None:
        super().__init__()
        self.means: list[CountedMean] = []
        self.aside: set[int] = set()
        """Sites of means that are no part of the loss."""
        self._differentiates = torch.is_grad_enabled()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Inspect the calls that compute a mean."""
        kwargs = kwargs or {}
        return self.call(func, args, kwargs) if func in WATCHED else func(*args, **kwargs)

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The mean that a function of torch computes, which is noted."""
        if self._differentiates and not torch.is_grad_enabled():
            self.aside.add(_site())
            return func(*args, **kwargs)
        found = None if len(args) > _POSITIONAL else _look(*args, **kwargs)
        if found is None:
            return func(*args, **kwargs)
        counted, targets, by_class = found
        if counted.device.type == "cpu" and (not has_values(counted) or counted > 0):
            value = func(*args, **kwargs)
        else:
            # The mean over no targets is NaN, and so are its gradients; their sum is 0.
            total = func(*args, **{**kwargs, "reduction": "sum"})
            value = total / torch.where(counted > 0, counted, 1).to(total.dtype)
        self.means.append(CountedMean(value, counted, targets, by_class, _site()))
        return value

    def of(self, loss: torch.Tensor) -> list[CountedMean]:
        """The means that may be part of a loss: those with gradients, if it has any."""
        if loss.requires_grad:
            self.aside |= {mean.site for mean in self.means if not mean.value.requires_grad}
            self.means = [mean for mean in self.means if mean.value.requires_grad]
        return self.means


def _look(
    _: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: object = None,
    ignore_index: int = -100,
    reduce: object = None,
    reduction: str = "mean",
    **_rest: object,
) -> tuple[torch.Tensor, int, bool] | None:
    """What a mean is divided by, of how many targets, and whether classes have weights.

    None if it is no mean over targets.
    """
    if reduction != "mean" or size_average is not None or reduce is not None:
        return None
    if target.is_floating_point():
        # Targets are probabilities: all of them count.
        return None
    targets = target.numel()
    if weight is None and ignore_index < 0 and _all_classes(target):
        return _number(targets), targets, False
    counts = target != ignore_index
    if weight is None:
        return counts.sum(), targets, False
    return (weight[target.clamp(min=0)] * counts).sum(), targets, True


def all_count(targets: object) -> bool:
    """Whether every target of a batch is a class that counts, by the defaults of `WATCHED`."""
    if not isinstance(targets, torch.Tensor) or targets.is_floating_point():
        return False
    return _all_classes(targets)


def _all_classes(target: torch.Tensor) -> bool:
    """Whether targets in the host's memory are classes, none of them below 0."""
    here = target.device.type == "cpu" and has_values(target) and target.numel() > 0
    return here and int(target.min()) >= 0


@lru_cache(maxsize=64)
def _number(value: int) -> torch.Tensor:
    """A number as a tensor, which must not be changed."""
    return torch.tensor(value)


def has_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor has values: none has on the meta device, nor a fake one."""
    return not tensor.is_meta and type(tensor).__name__ != "FakeTensor"


def _site() -> int:
    """The number of the line outside of torch that called; the same in all processes of a run."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith(_OURS):
        frame = frame.f_back
    return 0 if frame is None else _numbered(frame.f_code.co_filename, frame.f_lineno)


@lru_cache(maxsize=256)
def _numbered(file: str, line: int) -> int:
    # The folder may be another one on another host.
    return 1 + zlib.crc32(f"{Path(file).name}:{line}".encode()) % (_SITES - 1)


def reached(loss: torch.Tensor, means: Sequence[CountedMean]) -> list[CountedMean]:
    """The means that a loss depends on, as the graph of its backward pass has it."""
    wanted = {mean.value.grad_fn for mean in means} - {None}
    found = {loss.grad_fn} & wanted
    # Nodes are held, so that none is freed and another one gets its place.
    seen = {loss.grad_fn}
    queue: deque[Any] = deque([loss.grad_fn] if loss.grad_fn is not None else [])
    while queue and len(found) < len(wanted):
        for node, _ in queue.popleft().next_functions:
            if node is None or node in seen:
                continue
            seen.add(node)
            queue.append(node)
            if node in wanted:
                found.add(node)
    return [mean for mean in means if mean.value.grad_fn in found]


def scale_gradients(means: Sequence[CountedMean], factors: Sequence[float | torch.Tensor]) -> None:
    """Multiply what the backward pass brings to each mean by a factor, before it goes on."""
    for mean, factor in zip(means, factors, strict=True):
        if isinstance(factor, torch.Tensor) or factor != 1:
            mean.value.register_hook(_times(factor))  # type: ignore[no-untyped-call]  # torch's


def _times(factor: float | torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    def scaled(gradient: torch.Tensor) -> torch.Tensor:
        if isinstance(factor, torch.Tensor):
            return gradient * factor.to(gradient.dtype)
        return gradient * factor

    return scaled
