"""Exchanges over the workers of one host, in memory that they share.

All-gather, all-to-all, reduce-scatter and sums.

A worker writes what the others need of its tensor into its slot, waits until all have done so, and
reads what it needs from theirs. Numbers are added in the order of ranks. Slots are used in turn, so
that a fast worker may write the next chunk while a slow one still reads this one: it can write the
one after that only when all have written the next, and so have read this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from manyhands.transport.shared.sums import SharedSum

if TYPE_CHECKING:
    from collections.abc import Iterator


class SharedExchange(SharedSum):
    """The collectives of an engine, over the workers of a group that are on one host."""

    def gather(self, gathered: torch.Tensor, own: torch.Tensor) -> None:
        """Fill a contiguous vector, on every worker, with all workers' `own`, by rank.

        `own` may be the worker's part of `gathered`.
        """
        length = len(own)
        rows = gathered.view(self.size, length)
        is_there = rows[self.rank].data_ptr() == own.data_ptr()
        with self.raising():
            for begin, end, slots in self._turns(length, own.dtype, 1):
                slots[self.rank][: end - begin].copy_(own[begin:end])
                self._meet()
                for place, slot in enumerate(slots):
                    if place != self.rank:
                        rows[place, begin:end].copy_(slot[: end - begin])
                        self.exchanged[place] += (end - begin) * own.element_size()
        if not is_there:
            rows[self.rank].copy_(own)

    def swap(self, received: torch.Tensor, given: torch.Tensor) -> None:
        """Fill a contiguous vector with this worker's part of every worker's `given`, by rank."""
        length, own = len(given) // self.size, self.rank
        rows, found = given.view(self.size, length), received.view(self.size, length)
        with self.raising():
            for begin, end, slots in self._turns(length, given.dtype, self.size):
                self._offer(slots[own], rows[:, begin:end])
                for place, slot in enumerate(slots):
                    if place != own:
                        found[place, begin:end].copy_(slot[own * (end - begin) :][: end - begin])
        found[own].copy_(rows[own])

    def scatter(self, total: torch.Tensor, given: torch.Tensor) -> None:
        """Fill a contiguous vector with this worker's part of the sum of all workers' `given`."""
        length, own = len(total), self.rank
        rows = given.view(self.size, length)
        with self.raising():
            for begin, end, slots in self._turns(length, given.dtype, self.size):
                count = end - begin
                self._offer(slots[own], rows[:, begin:end])
                parts = [slot[own * count :][:count] for slot in slots]
                parts[own] = rows[own, begin:end]
                torch.add(parts[0], parts[1], out=total[begin:end])
                for more in parts[2:]:
                    total[begin:end].add_(more)

    def sum(self, flat: torch.Tensor) -> None:
        """Replace a contiguous vector, on every worker, by the sum over all workers."""
        with self.raising():
            for chunk in self._chunks(flat):
                places = self._places(len(chunk), chunk.dtype)
                self._reduce(chunk, places)
                self._spread(chunk, places, 1.0)

    def _offer(self, slot: torch.Tensor, rows: torch.Tensor) -> None:
        """Write a row for every other worker into the own slot, and wait until all have done so."""
        count = rows.shape[1]
        for place, row in enumerate(rows):
            if place != self.rank:
                slot[place * count :][:count].copy_(row)
                self.exchanged[place] += count * row.element_size()
        self._meet()

    def _turns(
        self, length: int, dtype: torch.dtype, rows: int
    ) -> Iterator[tuple[int, int, tuple[torch.Tensor, ...]]]:
        """Where chunks of a vector begin and end, and all workers' slots for each.

        Args:
            length: numbers of the vector.
            dtype: their type.
            rows: vectors of which a slot must hold a chunk.
        """
        most = max(1, self._slot // (dtype.itemsize * rows))
        for begin in range(0, length, most):
            slots = self._sets[self._next_turn()].view(dtype).chunk(self.size)
            yield begin, min(length, begin + most), slots
