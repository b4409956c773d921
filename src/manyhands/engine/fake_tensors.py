"""Computation on fake tensors: shapes without content, and the memory that they would take."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any, Self

import torch
from torch._C._distributed_c10d import _resolve_process_group as resolve
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_COLLECTIVES = {
    "_c10d_functional::all_gather_into_tensor": "all_gather",
    "_c10d_functional::all_reduce": "allreduce",
    "_c10d_functional::all_to_all_single": "all_to_all",
    "_c10d_functional::broadcast": "broadcast",
    "_c10d_functional::reduce_scatter_tensor": "reduce_scatter",
}

_UNIMAGINABLE = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

_active = 0


@contextlib.contextmanager
def fake_tensors() -> Iterator[None]:
    """Context in which tensors have shapes and no content, and operations take no time.

    Raises:
        ValueError: the code inside depends on the content of a tensor.
    """
    # Loaded here: it takes more than a second, and workers ask this module only for `is_fake`.
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache  # noqa: PLC0415

    global _active  # noqa: PLW0603 - a state of the process, as torch's modes are
    _active += 1
    # It caches groups by the mesh coordinates of the last dry run's worker.
    forget: Any = _clear_sharding_prop_cache
    forget()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    except _UNIMAGINABLE as error:
        raise ValueError(
            f"{getattr(error, 'func', None) or error} depends on the content of a tensor, which a "
            "dry run does not have"
        ) from error
    finally:
        _active -= 1


def is_fake() -> bool:
    """Whether `fake_tensors` is active."""
    return _active > 0


def really() -> contextlib.AbstractContextManager[object]:
    """Context in which tensors have content, even inside `fake_tensors`."""
    return _disable_current_modes()


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Tracks the memory of all tensors that are created while it is active.

    Temporary memory inside an operation is not counted.

    Args:
        note: called with kind, bytes and workers of collectives that do not reach the process
            groups, because they run on fake tensors.
    """

    def __init__(self, note: Callable[[str, int, int], object] = lambda *_: None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._note_collective = note
        self.held = 0
        """Current bytes."""
        self.peak = 0
        """Peak bytes."""
        self._sizes: dict[int, int] = {}
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> Self:
        ledger, resize = self, self._resize

        # FSDP frees memory by resizing a storage to zero, which is not an operation.
        def noted(storage: torch.UntypedStorage, size: int) -> Any:
            resized = resize(storage, size)
            if storage._cdata in ledger._sizes:
                ledger._change(storage._cdata, storage.nbytes())
            return resized

        torch.UntypedStorage.resize_ = noted  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]  # torch's
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch's
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Record the memory of the results."""
        kwargs = kwargs or {}
        self._record_collective(func, args)
        came = func(*args, **kwargs)
        for one in tree_leaves(came):
            if isinstance(one, torch.Tensor):
                # A DTensor has a part in the memory of this worker.
                self._note(getattr(one, "_local_tensor", one))
        return came

    def _record_collective(self, func: Any, args: tuple[Any, ...]) -> None:
        kind = _COLLECTIVES.get(func._schema.name)
        if kind is not None and is_fake():
            workers = resolve(args[-1]).size()
            size = args[0].nbytes * (workers if kind == "all_gather" else 1)
            self._note_collective(kind, size, workers)

    def _note(self, tensor: torch.Tensor) -> None:
        if tensor.device.type == "meta":
            return
        storage = tensor.untyped_storage()
        if storage._cdata not in self._sizes:
            self._sizes[storage._cdata] = 0
            weakref.finalize(storage, self._forget, storage._cdata)
        self._change(storage._cdata, storage.nbytes())

    def _change(self, key: int, size: int) -> None:
        self.held += size - self._sizes[key]
        self._sizes[key] = size
        self.peak = max(self.peak, self.held)

    def _forget(self, key: int) -> None:
        self.held -= self._sizes.pop(key)


def run_fake(compute: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    """The result of `compute(*inputs)` on fake tensors, with shapes and dtypes but no values.

    It allocates no memory for tensors, whatever the size of the model. Parameters may be real or on
    the meta device. Random generators and buffers are not changed.
    """
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return compute(*(mode.from_tensor(tensor.detach()) for tensor in inputs))
