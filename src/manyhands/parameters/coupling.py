"""Coupling of an optimizer's elements: what has to be together for a step to be right.

An optimizer is not judged by its class. A subclass may override `step`, an instance may have hooks
or another `step`, and a setting may change what is computed. So the instance itself takes a few
steps on small tensors, once on all of them together and once on parts:

- element: pieces of flattened tensors, merged and cut anywhere, give the same (SGD, Adam).
- tensor: whole tensors give the same, each on its own (Muon, Adafactor, LARS).
- all: only all parameters together do (a hook that clips by the norm of all gradients).

The instance is as it was afterwards: its groups, its state, its attributes. Hooks are called.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import torch
from torch.utils._python_dispatch import _disable_current_modes

from manyhands.job.optimizers import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Coupling: TypeAlias = Literal["element", "tensor", "all"]

_ORDER: Final[tuple[Coupling, ...]] = ("element", "tensor", "all")
_SCALES: Final = (1.0, 1e3, 1e-2)
"""Sizes of the gradients of the steps: what depends on a norm may have a threshold."""
_MOST: Final = 2048
"""Elements of a small tensor at most."""
_RATE: Final = 0.05
"""The learning rate of the trial: that of the job may be 0 at first."""
_KNOWN: Final[dict[object, Coupling]] = {}
"""By class, settings and shapes, for optimizers of torch that nothing was added to."""


def check_step(optimizer: torch.optim.Optimizer) -> None:
    """Raise TypeError for an optimizer whose step evaluates the loss itself."""
    for one in parts_of(optimizer):
        try:
            closure = inspect.signature(one.step).parameters.get("closure")
        except (TypeError, ValueError):
            continue
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise TypeError(
                f"{named(one)} evaluates the loss several times in a step, by a closure that no "
                "strategy gives: use an optimizer that steps with one gradient, such as SGD or "
                "AdamW"
            )


def coupling_of(optimizer: torch.optim.Optimizer) -> Coupling:
    """What has to be together for a step, as found by a trial; the most of several optimizers."""
    found = [_coupling(one) for one in parts_of(optimizer)]
    return max(found, key=_ORDER.index)


def named(optimizer: torch.optim.Optimizer) -> str:
    """An optimizer in words, with what was added to it."""
    words = []
    for one in parts_of(optimizer):
        added = "a step of its own" if "step" in getattr(one, "__dict__", {}) else ""
        hooks = "step hooks" if any(getattr(one, hook, None) for hook in _HOOKS) else ""
        extra = " and ".join(filter(None, (added, hooks)))
        words.append(type(one).__name__ + (f" with {extra}" if extra else ""))
    return ", ".join(words)


_HOOKS: Final = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def _coupling(optimizer: torch.optim.Optimizer) -> Coupling:
    # Not all optimizers are torch's: whatever has groups and steps is one.
    made: object = optimizer
    if not isinstance(made, torch.optim.Optimizer):
        # What else it has is not known, and could not be restored.
        return "tensor"
    trial = StepTrial.of(optimizer)
    if not trial.tensors:
        return "element"
    key = _key(optimizer, trial)
    if key is None:
        return _try(optimizer, trial)
    if key not in _KNOWN:
        _KNOWN[key] = _try(optimizer, trial)
    return _KNOWN[key]


def _key(optimizer: torch.optim.Optimizer, trial: StepTrial) -> object | None:
    """What decides about an optimizer of torch that nothing was added to; None for any other."""
    kind = type(optimizer)
    added = "step" in vars(optimizer) or any(getattr(optimizer, hook, True) for hook in _HOOKS)
    if added or not kind.__module__.startswith("torch.optim") or _has_global_hooks():
        return None
    settings = [
        sorted((name, repr(value)) for name, value in group.items() if name not in _OPEN)
        for group in optimizer.param_groups
    ]
    return kind, repr(settings), repr(trial.shapes)


_OPEN: Final = ("params", "lr", "initial_lr")


def _has_global_hooks() -> bool:
    names = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
    module = sys.modules[torch.optim.Optimizer.__module__]
    return any(getattr(module, name, None) for name in names)


def _try(optimizer: torch.optim.Optimizer, trial: StepTrial) -> Coupling:
    # In a dry run tensors have no values outside of it.
    with _disable_current_modes():
        return _found(optimizer, trial)


def _found(optimizer: torch.optim.Optimizer, trial: StepTrial) -> Coupling:
    try:
        together = trial.run(optimizer, [trial.whole(0, 1)])
    except Exception:  # noqa: BLE001 - a step may need anything, so nothing is taken apart
        return "all"
    for found, runs in (
        ("element", trial.pieces()),
        ("tensor", [trial.whole(0, 2), trial.whole(1, 2)]),
    ):
        try:
            apart = trial.run(optimizer, runs)
        except Exception:  # noqa: BLE001, S112 - it does not take parts of this kind
            continue
        if same(together, apart):
            return "element" if found == "element" else "tensor"
    return "all"


def same(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether values are equal to rounding."""
    return all(
        torch.allclose(one, other, rtol=_tolerance(one), atol=_tolerance(one), equal_nan=True)
        for one, other in zip(ones, others, strict=True)
    )


def _tolerance(tensor: torch.Tensor) -> float:
    rounding: float = torch.finfo(tensor.dtype).eps
    return float(rounding**0.75)


@dataclass(frozen=True)
class GroupPart:
    """What an optimizer is given as one tensor."""

    group: int
    spans: tuple[tuple[int, int, int], ...]
    """Tensors of the trial, each with the first and the end of its elements."""
    is_whole: bool
    """Whether it is one tensor in its shape, and not flat."""

    def of(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """A copy of its elements."""
        if self.is_whole:
            return tensors[self.spans[0][0]].clone()
        return torch.cat([tensors[at].reshape(-1)[start:stop] for at, start, stop in self.spans])

    def store(self, tensors: Sequence[torch.Tensor], value: torch.Tensor) -> None:
        """Write its elements back."""
        flat = value.detach().reshape(-1)
        for at, start, stop in self.spans:
            tensors[at].view(-1)[start:stop] = flat[: stop - start]
            flat = flat[stop - start :]


@dataclass(frozen=True)
class StepTrial:
    """Small tensors in the place of an optimizer's parameters.

    Two for each number of dims in each group, of different sizes, in the host's memory.
    """

    groups: tuple[int, ...]
    """By tensor, its group."""
    tensors: tuple[torch.Tensor, ...]
    gradients: tuple[tuple[torch.Tensor, ...], ...]
    """By step, those of all tensors."""
    likes: tuple[torch.Tensor, ...]
    """By tensor, the parameter that it stands for."""

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer) -> StepTrial:
        """The small tensors for an optimizer."""
        chosen: list[tuple[int, tuple[int, ...], torch.Tensor]] = []
        for number, group in enumerate(optimizer.param_groups):
            kinds: dict[tuple[int, torch.dtype], torch.Tensor] = {}
            for one in group["params"]:
                kind = (one.dim(), one.dtype)
                if one.requires_grad and one.numel() > (
                    kinds[kind].numel() if kind in kinds else 0
                ):
                    kinds[kind] = one
            for like in kinds.values():
                chosen += [(number, shape, like) for shape in _shapes(like.shape)]
        with _disable_current_modes():
            random = torch.Generator().manual_seed(0)
            made = [_random(shape, like.dtype, random) for _, shape, like in chosen]
            gradients = [
                tuple(_random(shape, like.dtype, random) * scale for _, shape, like in chosen)
                for scale in _SCALES
            ]
        numbers, likes = (number for number, *_ in chosen), (like for *_, like in chosen)
        return cls(tuple(numbers), tuple(made), tuple(gradients), tuple(likes))

    @property
    def shapes(self) -> list[object]:
        """What the tensors are like, apart from their values."""
        return [(tuple(one.shape), one.dtype, one.device) for one in self.tensors]

    def whole(self, first: int, every: int) -> list[GroupPart]:
        """Whole tensors: all, or each second one."""
        chosen = range(len(self.tensors))[first::every]
        return [
            GroupPart(self.groups[at], ((at, 0, self.tensors[at].numel()),), True) for at in chosen
        ]

    def pieces(self) -> list[list[GroupPart]]:
        """Two parts of all elements: lines of flattened tensors of one group and dtype, cut."""
        lines: dict[tuple[int, torch.dtype], list[tuple[int, int, int]]] = {}
        for at, (number, tensor) in enumerate(zip(self.groups, self.tensors, strict=True)):
            lines.setdefault((number, tensor.dtype), []).append((at, 0, tensor.numel()))
        runs: list[list[GroupPart]] = [[], []]
        for (number, _), spans in lines.items():
            cut = sum(stop for _, _, stop in spans) // 3
            for run, wanted in zip(runs, _cut(spans, cut), strict=True):
                if wanted:
                    run.append(GroupPart(number, tuple(wanted), False))
        return runs

    def run(
        self,
        optimizer: torch.optim.Optimizer,
        runs: Sequence[Sequence[GroupPart]],
        lay: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        gather: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """The values of all tensors after some steps.

        Args:
            optimizer: it steps in the place of its parameters, and is as it was afterwards.
            runs: by run, what it is given. Each begins anew.
            lay: lays a tensor out as a parameter is.
            gather: the whole of what was laid out.
        """
        values = [one.clone() for one in self.tensors]
        for pieces in runs:
            with _as_it_was(optimizer):
                stepped = self._give(optimizer, pieces, lay)
                for gradients in self.gradients:
                    for one, piece in zip(stepped, pieces, strict=True):
                        one.grad = self._laid(piece, gradients, lay)
                    optimizer.step()
                    for one in stepped:
                        one.grad = None
                for one, piece in zip(stepped, pieces, strict=True):
                    found = one.detach()
                    piece.store(values, found if gather is None else gather(found))
        return values

    def _laid(
        self,
        piece: GroupPart,
        tensors: Sequence[torch.Tensor],
        lay: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None,
    ) -> torch.Tensor:
        made = piece.of(tensors)
        return made if lay is None else lay(made, self.likes[piece.spans[0][0]])

    def _give(
        self,
        optimizer: torch.optim.Optimizer,
        pieces: Sequence[GroupPart],
        lay: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None,
    ) -> list[torch.nn.Parameter]:
        """Let an optimizer have pieces in the place of its parameters."""
        stepped = [torch.nn.Parameter(self._laid(one, self.tensors, lay)) for one in pieces]
        for number, group in enumerate(optimizer.param_groups):
            group["params"] = [
                one for one, piece in zip(stepped, pieces, strict=True) if piece.group == number
            ]
            rate = group.get("lr")
            if rate is not None:
                tensor = isinstance(rate, torch.Tensor)
                group["lr"] = torch.full_like(rate, _RATE) if tensor else _RATE
        return stepped


def _cut(
    spans: Sequence[tuple[int, int, int]], at: int
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Spans before and after an element."""
    before, after = [], []
    for tensor, start, stop in spans:
        middle = min(max(at, start), stop)
        if middle > start:
            before.append((tensor, start, middle))
        if stop > middle:
            after.append((tensor, middle, stop))
        at -= stop
    return before, after


def _shapes(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Two small shapes with as many dims as a tensor has."""
    sizes = list(shape)
    while torch.Size(sizes).numel() > _MOST:
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        sizes[largest] = -(-sizes[largest] // 2)
    return [tuple(sizes), tuple(max(1, size - 1) for size in sizes)]


def _random(shape: Sequence[int], dtype: torch.dtype, random: torch.Generator) -> torch.Tensor:
    """Random numbers of a dtype; of a short one in float32, where differences can be seen."""
    short = not dtype.is_complex and dtype.itemsize < torch.float32.itemsize
    kind = torch.float32 if short else dtype
    return torch.randn(tuple(shape), dtype=kind, generator=random, device="cpu")


@contextlib.contextmanager
def _as_it_was(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Context after which an optimizer is as before, and so are torch's random numbers."""
    groups = [
        (group, {name: _copied(value) for name, value in group.items()})
        for group in optimizer.param_groups
    ]
    state = dict(optimizer.state)
    others = {
        name: (value, _copied(value))
        for name, value in vars(optimizer).items()
        if name not in {"param_groups", "state"} and not name.startswith("_optimizer_")
    }
    optimizer.state.clear()
    drawn = torch.random.get_rng_state()
    try:
        yield
    finally:
        torch.random.set_rng_state(drawn)
        optimizer.state.clear()
        optimizer.state.update(state)
        for group, before in groups:
            group.clear()
            group.update(before)
        for name in vars(optimizer).keys() - others.keys() - {"param_groups", "state"}:
            if not name.startswith("_optimizer_"):
                del vars(optimizer)[name]
        for name, (value, before) in others.items():
            _restore(value, before)
            vars(optimizer)[name] = value


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if value.numel() == 1 else value
    return copy.copy(value) if isinstance(value, (dict, list, set)) else value


def _restore(value: Any, before: Any) -> None:
    """Undo changes in place, for whoever else refers to a value."""
    if isinstance(value, dict):
        value.clear()
        value.update(before)
    elif isinstance(value, list):
        value[:] = before
    elif isinstance(value, set):
        value.clear()
        value.update(before)
    elif isinstance(value, torch.Tensor) and value is not before:
        value.detach().copy_(before)
