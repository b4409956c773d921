"""Streams: data that is read in order, and whose length is known only at its end."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from torch.utils.data import IterableDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENDLESS: Final = 1 << 62
"""The length of a stream as long as its end is not known: its first epoch never ends."""


@runtime_checkable
class StreamedData(Protocol):
    """A stream: samples are read in order, and every iteration starts at the first one.

    Example:
        >>> import torch
        >>> import manyhands as mh
        >>> class Numbers(torch.utils.data.IterableDataset):
        ...     def __iter__(self):
        ...         return iter(range(1001))
        >>> isinstance(Numbers(), mh.StreamedData)
        True
    """

    def __iter__(self) -> Iterator[Any]: ...


def is_stream(data: object) -> bool:
    """Whether data is read in order: an `IterableDataset`, or iterable without a length."""
    return isinstance(data, IterableDataset) or (
        hasattr(data, "__iter__") and not hasattr(data, "__len__")
    )


class StreamReader:
    """Reads samples of a stream by position, forward as far as possible.

    The samples that were read last are kept, so that parts of one global batch can be taken in any
    order. For an earlier sample the stream is read again from its beginning.

    Args:
        data: the stream.
    """

    def __init__(self, data: StreamedData) -> None:
        self._data = data
        self._iterator: Iterator[Any] | None = None
        self._position = 0
        """Of the sample that is read next."""
        self._kept: deque[Any] = deque()
        """The samples before that position."""
        self._window = 1
        """The number of samples to keep."""
        self._end: int | None = None

    def sample(self, position: int, seed: Callable[[int], None]) -> Any:
        """The sample at a position.

        Args:
            position: of the sample, from 0.
            seed: is called with the position of each sample before it is read.

        Raises:
            IndexError: the stream ends before.
        """
        if position < self._position - len(self._kept):
            self._iterator, self._position = None, 0
            self._kept.clear()
        if not self._read_to(position + 1, seed):
            raise IndexError(f"the stream has {self._end} samples: no sample {position}")
        return self._kept[position - self._position]

    def end_by(self, start: int, stop: int, seed: Callable[[int], None]) -> int | None:
        """The number of samples of the stream, if it has at most `stop`; otherwise None.

        The samples from `start` to `stop` are kept, and one more is read.
        """
        self._window = max(self._window, 2 * (stop - start) + 1)
        if self._end is None:
            self._read_to(stop + 1, seed)
        return self._end if self._end is not None and self._end <= stop else None

    def _read_to(self, position: int, seed: Callable[[int], None]) -> bool:
        """Read on until a position; False if the stream ends before."""
        if self._iterator is None:
            seed(-1)
            self._iterator = iter(self._data)
        while self._position < position:
            seed(self._position)
            try:
                sample = next(self._iterator)
            except StopIteration:
                self._end = self._position
                return False
            self._kept.append(sample)
            self._position += 1
            if len(self._kept) > self._window:
                self._kept.popleft()
        return True
