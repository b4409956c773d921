"""Making a model that is larger than the memory, with the values that it would have had.

A layer is made of uninitialised memory (`torch.empty`) that it then fills, mostly at random. A
worker that is to hold only parts of all layers watches that memory: when the parameters that were
made so far take too much of it, it keeps its own part of the one that was touched longest ago, and
gives the memory back. So all workers draw the same random numbers in the same order as one worker
that makes the whole model, each holds its part of the same values, and none ever holds much more.

Which parts are its own a worker knows only when it knows the model's structure. So a model is made
twice: first for its structure, then for its values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from manyhands.parameters.trimming import trim
from manyhands.seeding import random_state, restore_random_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Keep = Callable[[torch.Tensor], torch.Tensor]

HELD = 64 * 1024 * 1024
"""Bytes of whole parameters that a worker holds while it makes a model, or three times the
largest: what fills it may need room beside it."""

_TRIMMED = 8 * 1024 * 1024
"""Bytes that are freed before they are given back to the system."""

_EMPTY = frozenset({"aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided"})
_ELEMENTWISE = frozenset(
    f"aten::{name}_" for name in ("add", "clamp", "clamp_max", "clamp_min", "div", "mul", "sub")
)
"""Operations that may be carried out on a part alone, if all else they are given are numbers."""
_FILLING = frozenset(
    f"aten::{name}_"
    for name in (
        "bernoulli",
        "cauchy",
        "copy",
        "exponential",
        "fill",
        "geometric",
        "log_normal",
        "normal",
        "random",
        "uniform",
        "zero",
    )
)
"""Operations after which every element is new, whatever was there before."""
_PAST_DISPATCH = frozenset(
    getattr(torch.Tensor, name)
    for name in ("__array__", "__dlpack__", "data_ptr", "numpy", "tolist")
)
"""Functions that reach the memory of a tensor without an operation that could be watched."""


class Unmakeable(RuntimeError):  # noqa: N818 - what the model is
    """A model cannot be made part by part; the message says why."""


@dataclass(frozen=True, eq=False)
class Outline:
    """A model without most of its values."""

    model: nn.Module
    """On the meta device, but for what was never uninitialised memory."""
    numbers: Mapping[str, int]
    """Of the parameters and buffers that are not there, by name: which memory each was made of."""


def outline(make: Callable[[], nn.Module], held: int = HELD) -> Outline:
    """A model's structure; the random sources are left as they were.

    Raises:
        Unmakeable: the model's first values cannot be had part by part.
    """
    before = random_state()
    model, mode = _make({}, make, held)
    restore_random_state(before)
    return _outline(model, mode)


def outline_or_whole(make: Callable[[], nn.Module], held: int = HELD) -> nn.Module | Outline:
    """A model with its values if it is small enough to be here at once, else its structure.

    The random sources stand afterwards where they would if the whole model had been made, or, with
    an outline, are left as they were.

    Raises:
        Unmakeable: the model's first values cannot be had part by part.
    """
    before = random_state()
    model, mode = _make({}, make, held)
    if not mode.has_let_go:
        return model
    restore_random_state(before)
    return _outline(model, mode)


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    """A model's structure alone, without its values; the random sources are left as they were."""
    before = random_state()
    with torch.device("meta"):
        model = make()
    restore_random_state(before)
    return model


def first_values(
    make: Callable[[], nn.Module],
    numbers: Mapping[str, int],
    keep: Callable[[str, torch.Tensor], torch.Tensor],
    held: int = HELD,
) -> dict[str, torch.Tensor]:
    """What this worker keeps of each parameter and buffer, by name.

    Args:
        make: makes the model; the random sources stand where they would for a whole model.
        numbers: of the outline.
        keep: what to keep of the whole tensor of that name.
        held: bytes of whole parameters that may be here at a time.

    Raises:
        Unmakeable: the model's first values cannot be had part by part.
    """
    return place_values(make, numbers, lambda name, whole: keep(name, whole).clone(), held)


def place_values(
    make: Callable[[], nn.Module],
    numbers: Mapping[str, int],
    place: Callable[[str, torch.Tensor], torch.Tensor],
    held: int = HELD,
) -> dict[str, torch.Tensor]:
    """As `first_values`, but what is kept lies in memory that exists already.

    Args:
        make: as for `first_values`.
        numbers: of the outline.
        place: copies what is to be kept of the whole tensor of that name to its place, and gives
            that place. It may be called again for the same name: the last values count.
        held: as for `first_values`.

    Raises:
        Unmakeable: the model's first values cannot be had part by part.
    """
    model, mode = _make(
        {number: _keeper(name, place) for name, number in numbers.items()}, make, held
    )
    if _numbers(model, mode) != dict(numbers):
        raise Unmakeable("the model is made differently when it is made again")
    mode.let_go_of_all()
    kept = {name: mode.parts[number] for name, number in numbers.items()}
    for name, tensor in _named(model):
        if name not in numbers:
            kept[name] = place(name, tensor.detach())
    del model
    trim()
    return kept


def _make(
    keep: Mapping[int, Keep], make: Callable[[], nn.Module], held: int
) -> tuple[nn.Module, _Watching]:
    mode = _Watching(keep, held)
    with mode, _Pinning(mode):
        return make(), mode


def _outline(model: nn.Module, mode: _Watching) -> Outline:
    numbers = _numbers(model, mode)
    _forget(model, mode)
    trim()
    return Outline(model, numbers)


def _numbers(model: nn.Module, mode: _Watching) -> dict[str, int]:
    """By name, the memory of each parameter and buffer that was uninitialised memory.

    Raises:
        Unmakeable: a parameter is a part or another view of its memory.
    """
    numbers: dict[str, int] = {}
    taken: set[int] = set()
    for name, tensor in _named(model):
        number = mode.number(tensor)
        if number is None:
            continue
        if number in taken or not mode.is_all_of_its_memory(tensor):
            raise Unmakeable(f"{name} is a view of memory that was made for more than it")
        numbers[name] = number
        taken.add(number)
    return numbers


@dataclass(eq=False)
class _Memory:
    """What was uninitialised memory."""

    number: int
    storage: StorageWeakRef
    """Weak: what nobody uses any longer shall go. While this lives, its address is not reused."""
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    nbytes: int
    here: bool = True
    pinned: bool = False
    """Whether something else than torch may use it, and it has to stay."""

    def whole(self) -> torch.Tensor | None:
        """The tensor that lies in it; None if nobody uses it any longer."""
        storage: Any = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None:
            return None
        empty = torch.empty(0, dtype=self.dtype)
        return empty.set_(storage, 0, self.shape, self.stride)


class _Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """While it is active, not much more than `held` bytes of uninitialised memory stay here.

    Args:
        keep: by number, what to keep of the whole tensor in `parts`.
        held: bytes.
    """

    def __init__(self, keep: Mapping[int, Keep], held: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.parts: dict[int, torch.Tensor] = {}
        self._keep = keep
        self._limit = held
        self._known: dict[int, _Memory] = {}
        self._here: dict[int, _Memory] = {}
        """By number; who was touched last stands last."""
        self._count = 0
        self._freed = 0
        self.has_let_go = False
        """Whether any memory was given back."""

    def number(self, tensor: torch.Tensor) -> int | None:
        """Which uninitialised memory it lies in, in the order in which it was asked for."""
        memory = self._memory(tensor)
        return None if memory is None else memory.number

    def is_all_of_its_memory(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is just what its memory was asked for as."""
        memory = self._memory(tensor)
        return memory is not None and (
            (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset())
            == (memory.dtype, memory.shape, memory.stride, 0)
        )

    def pin(self, tensor: torch.Tensor, use: str) -> None:
        """Have the memory of a tensor stay, because of a use that cannot be watched."""
        memory = self._memory(tensor)
        if memory is None:
            return
        if not memory.here:
            raise Unmakeable(f"{use} needs a parameter after others were made")
        memory.pinned = True

    def let_go_of_all(self) -> None:
        """Keep the worker's own part of everything, and no more."""
        for memory in [*self._here.values()]:
            self._let_go(memory)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Carry out an operation with all that it needs here."""
        kwargs = kwargs or {}
        if func._schema.name in _EMPTY:
            return self._new(func(*args, **kwargs))
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        touched = {
            memory.number: memory for one in tensors if (memory := self._memory(one)) is not None
        }
        if not touched or func.is_view or torch.Tag.inplace_view in func.tags:
            return func(*args, **kwargs)
        gone = [memory for memory in touched.values() if not memory.here]
        if len(gone) > 1:
            raise Unmakeable(f"{func} needs parameters after others were made")
        if gone and not self._bring_back(gone[0], func, args, kwargs, alone=len(tensors) == 1):
            return args[0]
        for memory in touched.values():
            self._here[memory.number] = self._here.pop(memory.number)
        self._make_room({*touched})
        return func(*args, **kwargs)

    def _new(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu" or not tensor.nbytes:
            return tensor
        storage = tensor.untyped_storage()
        memory = _Memory(
            self._count,
            StorageWeakRef(storage),  # type: ignore[no-untyped-call]  # torch's
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
            storage.nbytes(),
        )
        self._known[storage._cdata] = self._here[self._count] = memory
        self._limit = max(self._limit, 3 * memory.nbytes)
        self._count += 1
        self._make_room({memory.number})
        return tensor

    def _memory(self, tensor: torch.Tensor) -> _Memory | None:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            return None
        return self._known.get(tensor.untyped_storage()._cdata)

    def _make_room(self, needed: set[int]) -> None:
        """Let go of who was touched longest ago, until the rest is few enough bytes."""
        held = sum(memory.nbytes for memory in self._here.values())
        for number, memory in [*self._here.items()]:
            if held <= self._limit:
                return
            if number not in needed and not memory.pinned:
                held -= memory.nbytes
                self._let_go(memory)

    def _let_go(self, memory: _Memory) -> None:
        del self._here[memory.number]
        whole = memory.whole()
        if whole is None:
            return
        if memory.number in self._keep:
            self.parts[memory.number] = self._keep[memory.number](whole)
        if memory.pinned:
            return
        memory.here = False
        self.has_let_go = True
        whole.untyped_storage().resize_(0)
        self._freed += memory.nbytes
        if self._freed > _TRIMMED:
            self._freed = 0
            trim()

    def _bring_back(
        self, memory: _Memory, func: Any, args: tuple[Any, ...], kwargs: Any, *, alone: bool
    ) -> bool:
        """Have a tensor here again that is about to be filled anew.

        Returns:
            Whether the operation has still to be carried out. If not, it was, on the part alone.
        """
        target = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if target is None or target.shape != memory.shape or self._memory(target) is not memory:
            raise Unmakeable(f"{func} needs a parameter after others were made")
        if func._schema.name in _ELEMENTWISE:
            if not alone:
                raise Unmakeable(f"{func} changes a parameter after others were made")
            if memory.number in self.parts:
                func(self.parts[memory.number], *args[1:], **kwargs)
            return False
        if func._schema.name not in _FILLING:
            raise Unmakeable(f"{func} changes a parameter after others were made")
        storage = torch.UntypedStorage._new_with_weak_ptr(memory.storage.cdata)
        storage.resize_(memory.nbytes)
        memory.here = True
        self._here[memory.number] = memory
        return True


class _Pinning(TorchFunctionMode):
    """While it is active, memory stays that is reached past torch's operations, as by NumPy."""

    def __init__(self, watching: _Watching) -> None:
        super().__init__()
        self._watching = watching

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Carry out a function."""
        if func in _PAST_DISPATCH:
            self._watching.pin(args[0], func.__name__)
        return func(*args, **(kwargs or {}))


def _forget(model: nn.Module, mode: _Watching) -> None:
    """Put meta tensors in the place of what is not here."""
    seen: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in list(tensors.items()):
                if tensor is None or mode.number(tensor) is None:
                    continue
                if id(tensor) not in seen:
                    seen[id(tensor)] = _absent(tensor)
                # By attribute: recurrent layers keep a list of their own.
                setattr(module, name, seen[id(tensor)])


def _absent(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=torch.device("meta")
    )
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def _keeper(name: str, keep: Callable[[str, torch.Tensor], torch.Tensor]) -> Keep:
    return lambda whole: keep(name, whole)


def _named(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
