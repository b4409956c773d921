"""A process group that records its collectives and the time spent waiting for them.

FSDP and DTensor call collectives from within torch, where they cannot be timed from outside. But
the process group may be ours: it can be written in Python, and torch calls it for every collective
(`docs/decisions/0024-engine-on-our-groups.md`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._C._distributed_c10d import ProcessGroup, ReduceOp, ReduceScatterOptions, Work

from manyhands.engine.fake_tensors import is_fake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta


class Watcher(Protocol):
    """Receiver of a group's events."""

    def begin(self) -> None:
        """A wait begins."""

    def end(self) -> None:
        """The wait ends."""

    def note(self, kind: str, size: int, workers: int) -> None:
        """A collective over `workers` begins; `size` is its larger side in bytes."""


class InMemory(Protocol):
    """Collectives that return when they are done, on contiguous vectors."""

    def gather(self, gathered: torch.Tensor, own: torch.Tensor) -> None:
        """Fill `gathered` with all workers' `own`, in the order of ranks."""

    def swap(self, received: torch.Tensor, given: torch.Tensor) -> None:
        """Fill `received` with this worker's part of every worker's `given`, by rank."""

    def scatter(self, total: torch.Tensor, given: torch.Tensor) -> None:
        """Fill `total` with this worker's part of the sum of all workers' `given`."""

    def sum(self, flat: torch.Tensor) -> None:
        """Replace `flat` by the sum over all workers."""


_KINDS = {
    "_allgather_base": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "all_to_all_single": "all_to_all",
    "allgather": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "allreduce": "allreduce",
    "allreduce_coalesced": "allreduce",
    "alltoall_base": "all_to_all",
    "broadcast": "broadcast",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "scatter": "scatter",
    "send": "send",
    "recv": "receive",
}
"""Methods that torch calls, and the kind of collective of each."""


class WatchedGroup(ProcessGroup):
    """A process group that delegates its collectives to another one, and records them.

    Args:
        inner: the group that runs them.
        device: the device type of its tensors.
        watcher: receives the events.
        memory: runs the most frequent ones in its place, if there is memory for them.
    """

    def __init__(
        self,
        inner: ProcessGroup,
        device: str,
        watcher: Watcher,
        memory: InMemory | None = None,
    ) -> None:
        super().__init__(inner.rank(), inner.size())  # type: ignore[call-arg]  # missing in the stubs
        self._inner = inner
        self._watcher = watcher
        self._memory = memory
        self._on_gloo = device == "cpu"
        backend = inner._get_backend(torch.device(device))
        kind = ProcessGroup.BackendType.NCCL if device == "cuda" else ProcessGroup.BackendType.GLOO
        self._set_default_backend(kind)
        self._register_backend(torch.device(device), kind, backend)

    def reduce_scatter_single(
        self, output: torch.Tensor, given: torch.Tensor, options: Any = None
    ) -> Work:
        """Reduce and scatter, with half the bytes of Gloo's own, which is an allreduce.

        Each worker receives its part of every worker's tensor, and sums these parts itself.
        """
        self._watcher.note("reduce_scatter", given.nbytes, self.size())
        mean = options.reduceOp == ReduceOp.AVG
        if not self._on_gloo or not (mean or options.reduceOp == ReduceOp.SUM):
            inner = self._inner.reduce_scatter_single(output, given, options)
            return _WatchedWork(inner, self._watcher)
        if self._memory is not None and _summable(output, given):
            self._timed(self._memory.scatter, output.view(-1), given.view(-1))
            if mean:
                output.div_(self.size())
            return _CompletedWork([output])
        parts = torch.empty_like(given)
        sent = self._inner.alltoall_base(parts, given, [], [])

        def add_up() -> None:
            torch.sum(parts.view(self.size(), *output.shape), dim=0, out=output)
            if mean:
                output.div_(self.size())

        return _WatchedWork(sent, self._watcher, add_up)

    def in_memory(self, name: str, *arguments: Any) -> Work | None:
        """Run a collective in memory; None if it has to be run by the engine."""
        given = arguments[0]
        if self._memory is None:
            return None
        if name in ("_allgather_base", "all_gather_single"):
            gathered, own = arguments[:2]
            if gathered.is_contiguous() and own.is_contiguous():
                self._timed(self._memory.gather, gathered.view(-1), own.view(-1))
                return _CompletedWork([gathered])
        elif name in ("alltoall_base", "all_to_all_single"):
            received, sent, *splits = arguments[:4]
            if received.is_contiguous() and sent.is_contiguous() and not any(splits):
                self._timed(self._memory.swap, received.view(-1), sent.view(-1))
                return _CompletedWork([received])
        elif name == "allreduce" and len(given) == 1 and _summable(*given):
            options = (one.reduceOp for one in arguments[1:] if hasattr(one, "reduceOp"))
            if next(options, ReduceOp.SUM) == ReduceOp.SUM:
                self._timed(self._memory.sum, given[0].view(-1))
                return _CompletedWork(given)
        return None

    def _timed(self, collective: Callable[..., None], *arguments: torch.Tensor) -> None:
        """Run a collective, and record the wait for it."""
        self._watcher.begin()
        try:
            with torch.no_grad():
                collective(*arguments)
        finally:
            self._watcher.end()

    def gather_rows(self, own: torch.Tensor) -> torch.Tensor:
        """All_gather of rows in rank order; all workers have equally many."""
        gathered_rows = own.new_empty(self.size() * len(own), *own.shape[1:])
        self._allgather_base(gathered_rows.view(-1), own.contiguous().view(-1)).wait()
        return gathered_rows

    def scatter_sums(self, parts: torch.Tensor) -> torch.Tensor:
        """Reduce_scatter of rows; all workers get equally many."""
        own = parts.new_empty(len(parts) // self.size(), *parts.shape[1:])
        self.reduce_scatter_single(own, parts.contiguous(), ReduceScatterOptions()).wait()
        return own


SUMMABLE = (torch.float32, torch.float64, torch.bfloat16)
"""Types of numbers that are summed in memory: a sum of float16 could overflow before it is
divided."""


def _summable(*tensors: torch.Tensor) -> bool:
    """Whether tensors can be summed in memory."""
    return all(each.dtype in SUMMABLE and each.is_contiguous() for each in tensors)


def _watched(name: str, kind: str) -> Callable[..., Work]:
    def call(self: WatchedGroup, *arguments: Any, **options: Any) -> Work:
        size = max((sum(one) for one in _sizes(arguments)), default=0)
        self._watcher.note(kind, size, self.size())
        done = self.in_memory(name, *arguments, *options.values())
        if done is not None:
            return done
        work = _WatchedWork(getattr(self._inner, name)(*arguments, **options), self._watcher)
        if kind == "all_gather" and self._on_gloo and is_fake():
            # Gloo gathers into its own memory, and copies from there.
            work.uses = torch.empty(size, dtype=torch.uint8)
        return work

    call.__name__ = name
    return call


for _name, _kind in _KINDS.items():
    setattr(WatchedGroup, _name, _watched(_name, _kind))


def _sizes(arguments: tuple[Any, ...]) -> Iterator[list[int]]:
    """For each argument that is or contains tensors, their bytes."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            yield [argument.nbytes]
        elif isinstance(argument, (list, tuple)) and argument:
            yield [size for one in _sizes(tuple(argument)) for size in one]


class _WatchedWork(Work):
    """A collective in progress; `then` is called once, after the first wait."""

    def __init__(
        self, inner: Work, watcher: Watcher, then: Callable[[], None] | None = None
    ) -> None:
        super().__init__()
        self._inner = inner
        self._watcher = watcher
        self._then = then
        self.uses: torch.Tensor | None = None
        """Temporary memory, held until it has completed."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for it, and record the wait."""
        self._watcher.begin()
        try:
            done = self._inner.wait() if timeout is None else self._inner.wait(timeout)
        finally:
            self._watcher.end()
        then, self._then = self._then, None
        if then is not None:
            then()
        return done

    def synchronize(self) -> None:
        """As the inner one."""
        self._inner.synchronize()

    def is_completed(self) -> bool:
        """As the inner one."""
        return self._inner.is_completed()

    def is_success(self) -> bool:
        """As the inner one."""
        return self._inner.is_success()

    def get_future(self) -> Any:
        """As the inner one's."""
        return self._inner.get_future()

    def result(self) -> list[torch.Tensor]:
        """As the inner one's."""
        return self._inner.result()


class _CompletedWork(Work):
    """A collective that is done."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return at once."""
        del timeout
        return True

    def synchronize(self) -> None:
        """Return at once."""

    def is_completed(self) -> bool:
        """It is."""
        return True

    def is_success(self) -> bool:
        """It was."""
        return True

    def get_future(self) -> Any:
        """A future that has the result."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._tensors)
        return future

    def result(self) -> list[torch.Tensor]:
        """The tensors that were exchanged."""
        return self._tensors
