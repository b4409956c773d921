"""Exchanges of payloads between workers, each counted as it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits

_ALIGNMENT: Final = 8


class Exchange:
    """The workers of a group, to which payloads of bytes are sent.

    Args:
        group: the workers, on connections that no other thread uses.
        waits: counts the payload.
    """

    def __init__(self, group: Group, waits: Waits) -> None:
        self._group = group
        self._waits = waits
        self.rank, self.size = group.rank, group.size

    def coding(self) -> AbstractContextManager[None]:
        """Context of encoding or decoding, whose time is no communication."""
        return self._waits.coding()

    def sum(self, vector: torch.Tensor) -> None:
        """Replace a vector, on every worker, by the sum over all workers."""
        if vector.numel():
            self._waits.tally("allreduce", vector.nbytes, self.size)
            self._group.sum(vector)

    def scatter(
        self, payloads: Sequence[torch.Tensor], lengths: Sequence[int]
    ) -> list[torch.Tensor]:
        """Send each worker one of the payloads; what each of them sent, in the order of ranks.

        Args:
            payloads: one for each worker, in the order of ranks.
            lengths: bytes of what is received from each.
        """
        sent = [len(payload) for payload in payloads]
        self._waits.tally("all_to_all", sum(sent), self.size)
        return self._exchange(payloads, sent, lengths)

    def gather(self, payload: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
        """Send all workers one payload; what each of them sent, in the order of ranks."""
        # The sum over workers of what each sends, of which its share is counted on average.
        self._waits.tally("all_gather", sum(lengths), self.size)
        return self._exchange([payload] * self.size, [len(payload)] * self.size, lengths)

    def numbers(self, own: Sequence[int]) -> list[list[int]]:
        """The numbers of each worker, all of which give equally many, in the order of ranks."""
        if not own:
            return [[] for _ in range(self.size)]
        sent = torch.tensor([*own])
        gathered = sent.new_empty(self.size * len(own))
        self._waits.tally("all_gather", gathered.nbytes, self.size)
        self._group.gather(gathered, sent)
        return [[int(one) for one in row] for row in gathered.view(self.size, -1)]

    def lengths(self, sent: Sequence[int]) -> list[int]:
        """The lengths of the payloads that this worker will receive, from those that it sends."""
        own = torch.tensor([*sent])
        received = torch.empty_like(own)
        self._waits.tally("all_to_all", own.nbytes, self.size)
        with self._group.watched():
            self._group.handle.alltoall_base(received, own, [], []).wait()
        return [int(length) for length in received]

    def swap(self, peer: int, payload: torch.Tensor) -> torch.Tensor:
        """Send a peer a payload, and receive its own."""
        sending = self._send(peer, payload)
        received = self.receive(peer)
        with self._group.watched():
            for work in sending:
                work.wait()
        return received

    def send(self, peer: int, payload: torch.Tensor) -> None:
        """Send a peer a payload."""
        sending = self._send(peer, payload)
        with self._group.watched():
            for work in sending:
                work.wait()

    def receive(self, peer: int) -> torch.Tensor:
        """The payload that a peer sends."""
        length = torch.empty(1, dtype=torch.int64)
        with self._group.watched():
            self._group.receive(length, peer).wait()
            received = torch.empty(int(length), dtype=torch.uint8)
            self._group.receive(received, peer).wait()
        return received

    def _send(self, peer: int, payload: torch.Tensor) -> list[torch.distributed.Work]:
        length = torch.tensor([len(payload)])
        self._waits.tally("send", payload.nbytes + length.nbytes, self.size)
        with self._group.watched():
            return [self._group.send(length, peer), self._group.send(payload, peer)]

    def _exchange(
        self, payloads: Sequence[torch.Tensor], sent: Sequence[int], lengths: Sequence[int]
    ) -> list[torch.Tensor]:
        received = torch.empty(sum(lengths), dtype=torch.uint8)
        with self._group.watched():
            self._group.handle.alltoall_base(
                received, torch.cat([*payloads]), [*lengths], [*sent]
            ).wait()
        return [aligned(payload) for payload in received.split_with_sizes([*lengths])]


def aligned(payload: torch.Tensor) -> torch.Tensor:
    """The payload at an address at which numbers of any dtype may begin."""
    return payload.clone() if payload.storage_offset() % _ALIGNMENT else payload
