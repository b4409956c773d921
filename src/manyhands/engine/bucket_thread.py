"""A thread that reduces DDP's buckets while the backward pass goes on.

DDP calls a hook for every bucket when its gradients are complete, in the same order on all workers,
and waits at the end of the backward pass. A reduction that blocks runs in this thread, on
connections of its own: DDP's collectives may be started at the same time in another order.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BucketFuture: TypeAlias = "torch.futures.Future[Any]"


class BucketThread:
    """Reduces buckets in a thread, one after the other, in the order in which they come."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Callable[[], torch.Tensor], BucketFuture] | None] = (
            queue.SimpleQueue()
        )
        self._failure: Exception | None = None
        threading.Thread(target=self._run, name="reduction", daemon=True).start()

    def submit(self, reduce: Callable[[], torch.Tensor]) -> BucketFuture:
        """Have a bucket reduced; the future, for DDP, has what `reduce` returns."""
        future: BucketFuture = torch.futures.Future()
        self._queue.put((reduce, future))
        return future

    def close(self) -> None:
        """End the thread; a reduction that waits for a peer ends when its group is freed."""
        self._queue.put(None)

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Context of a backward pass: raise what failed in the thread, not what DDP makes of it."""
        try:
            yield
        except RuntimeError:
            failure, self._failure = self._failure, None
            if failure is None:
                raise
            raise failure from None

    def _run(self) -> None:
        while (queued := self._queue.get()) is not None:
            reduce, future = queued
            result = None
            try:
                if self._failure is None:
                    result = reduce()
            except Exception as error:  # noqa: BLE001 - raised again by `raising`
                self._failure = error
            if self._failure is None:
                future.set_result(result)
            else:
                future.set_exception(self._failure)
