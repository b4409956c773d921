"""Tracking of a model's memory while it is created, and release of parameters already filled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from manyhands.parameters.initial.trimming import trim
from manyhands.parameters.initial.uncompiled_mode import UncompiledMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Keep = Callable[[torch.Tensor], torch.Tensor]

_SMALL = 1024
"""Size in bytes up to which only uninitialised memory is tracked."""
_TRIMMED = 8 * 1024 * 1024
"""Freed bytes after which memory is returned to the system."""

_EMPTY = frozenset({"aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided"})
_ELEMENTWISE = frozenset(
    f"aten::{name}_" for name in ("add", "clamp", "clamp_max", "clamp_min", "div", "mul", "sub")
)
"""Operations that can run on a part of a tensor, if their other arguments are numbers."""
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
"""Operations that overwrite every element."""
_PAST_DISPATCH = frozenset(
    getattr(torch.Tensor, name)
    for name in ("__array__", "__dlpack__", "data_ptr", "numpy", "tolist")
)
"""Functions that access a tensor's memory without an operation that could be tracked."""


class Unmakeable(RuntimeError):  # noqa: N818 - what the model is
    """A model cannot be created in parts; the message says why."""


@dataclass(eq=False)
class _Memory:
    """An allocation of uninitialised memory."""

    number: int
    storage: StorageWeakRef
    """A weak reference, so that unused memory is freed. While it lives, its address is reserved."""
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    nbytes: int
    here: bool = True
    pinned: bool = False
    """Whether code outside torch may use it, so that it must not be freed."""

    def whole(self) -> torch.Tensor | None:
        """The tensor in this memory; None if it is no longer used."""
        storage: Any = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None:
            return None
        empty = torch.empty(0, dtype=self.dtype)
        return empty.set_(storage, 0, self.shape, self.stride)


class Watching(UncompiledMode):
    """While active, limits the uninitialised memory of new tensors to about `held` bytes.

    Args:
        keep: by number of the allocation, a function that returns the part to keep.
        held: the limit in bytes.
        everything: whether to track the results of other operations too, such as `torch.randn`.
    """

    def __init__(self, keep: Mapping[int, Keep], held: int, *, everything: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.parts: dict[int, torch.Tensor] = {}
        self._keep = keep
        self._limit = held
        self._everything = everything
        self._known: dict[int, _Memory] = {}
        self._here: dict[int, _Memory] = {}
        """Allocations by number, the most recently used last."""
        self._count = 0
        self._freed = 0
        self.has_let_go = False
        """Whether any memory was freed."""

    def number(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor's allocation, in order of creation; None if it is not tracked."""
        memory = self._memory(tensor)
        return None if memory is None else memory.number

    def is_all_of_its_memory(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor covers its whole allocation."""
        memory = self._memory(tensor)
        return memory is not None and (
            (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset())
            == (memory.dtype, memory.shape, memory.stride, 0)
        )

    def pin(self, tensor: torch.Tensor, use: str) -> None:
        """Keep the memory of a tensor, because of a use that cannot be tracked."""
        memory = self._memory(tensor)
        if memory is None:
            return
        if not memory.here:
            raise Unmakeable(f"{use} needs a parameter that has been freed already")
        memory.pinned = True

    def release_all(self) -> None:
        """Free everything but the worker's own parts."""
        for memory in [*self._here.values()]:
            self._release(memory)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, with its arguments in memory."""
        kwargs = kwargs or {}
        if func._schema.name in _EMPTY:
            return self._new(func(*args, **kwargs))
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        touched = {
            memory.number: memory for one in tensors if (memory := self._memory(one)) is not None
        }
        if func.is_view or torch.Tag.inplace_view in func.tags:
            return func(*args, **kwargs)
        gone = [memory for memory in touched.values() if not memory.here]
        if len(gone) > 1:
            raise Unmakeable(f"{func} needs parameters that have been freed already")
        if gone and not self._bring_back(gone[0], func, args, kwargs, alone=len(tensors) == 1):
            return args[0]
        for memory in touched.values():
            self._here[memory.number] = self._here.pop(memory.number)
        if touched:
            self._make_room({*touched})
        came = func(*args, **kwargs)
        if self._everything:
            given = {one.untyped_storage()._cdata for one in tensors if _is_plain(one)}
            for one in tree_leaves(came):
                if isinstance(one, torch.Tensor) and self._is_unknown(one, given):
                    self._new(one)
        return came

    def _is_unknown(self, tensor: torch.Tensor, given: set[int]) -> bool:
        """Whether a tensor is in memory that an operation has just allocated."""
        if not _is_plain(tensor) or tensor.nbytes <= _SMALL:
            return False
        storage = tensor.untyped_storage()
        key = storage._cdata
        return key not in given and key not in self._known and bool(storage.resizable())

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
        if not _is_plain(tensor):
            return None
        return self._known.get(tensor.untyped_storage()._cdata)

    def _make_room(self, needed: set[int]) -> None:
        """Free the least recently used allocations until the limit is met."""
        held = sum(memory.nbytes for memory in self._here.values())
        for number, memory in [*self._here.items()]:
            if held <= self._limit:
                return
            if number not in needed and not memory.pinned:
                held -= memory.nbytes
                self._release(memory)

    def _release(self, memory: _Memory) -> None:
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
        """Allocate a freed tensor again that is about to be overwritten.

        Returns:
            Whether the operation still has to run. If not, it has run on the kept part.
        """
        target = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if target is None or target.shape != memory.shape or self._memory(target) is not memory:
            raise Unmakeable(f"{func} needs a parameter that has been freed already")
        if func._schema.name in _ELEMENTWISE:
            if not alone:
                raise Unmakeable(f"{func} changes a parameter that has been freed already")
            if memory.number in self.parts:
                func(self.parts[memory.number], *args[1:], **kwargs)
            return False
        if func._schema.name not in _FILLING:
            raise Unmakeable(f"{func} changes a parameter that has been freed already")
        storage = torch.UntypedStorage._new_with_weak_ptr(memory.storage.cdata)
        storage.resize_(memory.nbytes)
        memory.here = True
        self._here[memory.number] = memory
        return True


class Pinning(TorchFunctionMode):
    """While active, keeps memory that is accessed outside torch's operations, as by NumPy."""

    def __init__(self, watching: Watching) -> None:
        super().__init__()
        self._watching = watching

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function, after its tensors were pinned if needed."""
        if func in _PAST_DISPATCH:
            self._watching.pin(args[0], func.__name__)
        return func(*args, **(kwargs or {}))


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout == torch.strided
