"""Streams: data that is read in order, and whose length is known only at its end."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from torch.utils.data import IterableDataset

from manyhands.data.sample_digest import digest

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


@dataclass(frozen=True)
class StreamPlace:
    """A place in a stream that has `state_dict` and `load_state_dict`, to continue from."""

    position: int
    """Of the sample that is read next."""
    state: Any
    """What `state_dict` returned."""
    following: str
    """A digest of the sample at that position."""


def has_state(data: object) -> bool:
    """Whether a stream can be continued from a state, as torchdata and datasets have it."""
    return hasattr(data, "state_dict") and hasattr(data, "load_state_dict")


class StreamReader:
    """Reads samples of a stream by position, forward as far as possible.

    The samples that were read last are kept, so that parts of one global batch can be taken in any
    order. For an earlier sample the stream is read again from its beginning.

    Args:
        data: the stream.
        start: a place to begin at. It is not used if the sample there is another one than it was:
            not every stream continues exactly where its `state_dict` was taken (a buffer in which
            samples are shuffled may be filled anew).
        places: whether to note places at which a later reader can begin.
    """

    def __init__(
        self, data: StreamedData, start: StreamPlace | None = None, *, places: bool = False
    ) -> None:
        self._data: Any = data
        self._start = start if has_state(data) else None
        self._first: Any = None
        """The state of the stream before it was moved to the place; None if it was not."""
        self._places = places and has_state(data)
        self.place: StreamPlace | None = None
        """The place after the samples that `end_by` was last called for, if it is known."""
        self.failed = ""
        """Why the place to begin at was not used; empty if it was."""
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
            self._begin_again()
        if not self._read_to(position + 1, seed):
            raise IndexError(f"the stream has {self._end} samples: no sample {position}")
        return self._kept[position - self._position]

    def end_by(self, start: int, stop: int, seed: Callable[[int], None]) -> int | None:
        """The number of samples of the stream, if it has at most `stop`; otherwise None.

        The samples from `start` to `stop` are kept, and one more is read.
        """
        self._window = max(self._window, 2 * (stop - start) + 1)
        if self._end is None:
            self._read_between(start, stop, seed)
        return self._end if self._end is not None and self._end <= stop else None

    def _read_between(self, start: int, stop: int, seed: Callable[[int], None]) -> None:
        """Read the samples between two positions and one more; note the place before that one."""
        if self._iterator is None and self._start is not None and start >= self._start.position:
            self._move_to(self._start, seed)
        state: Any = None
        if self._places and self._position <= stop and self._read_to(stop, seed):
            state = copy.deepcopy(self._data.state_dict())
        if self._read_to(stop + 1, seed) and state is not None:
            self.place = StreamPlace(stop, state, digest(self._kept[-1]))

    def _move_to(self, start: StreamPlace, seed: Callable[[int], None]) -> None:
        """Continue from a place, or from the beginning if the stream is not the same there."""
        self._first, self._start = copy.deepcopy(self._data.state_dict()), None
        try:
            self._data.load_state_dict(copy.deepcopy(start.state))
            self._position = start.position
            if self._read_to(start.position + 1, seed) and digest(self._kept[-1]) == (
                start.following
            ):
                return
            self.failed = "the next sample was another one"
        except Exception as error:  # noqa: BLE001 - the stream's own code
            self.failed = f"{type(error).__name__}: {error}"
        self._end = None
        self._begin_again()

    def _begin_again(self) -> None:
        if self._first is not None:
            self._data.load_state_dict(self._first)
            self._first = None
        self._iterator, self._position = None, 0
        self._kept.clear()

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
