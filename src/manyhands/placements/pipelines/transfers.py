"""Transfers of tensors between the stages of a pipeline.

Workers of one host hand them over in memory that they share, unless they are very large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from manyhands.engine.fake_tensors import is_fake
from manyhands.transport.shared.posts import LARGEST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.engine.pipelines import Arrival
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


class StageTransfers:
    """Sends and receives of one worker of a pipeline.

    Args:
        group: the workers.
        waits: records what is sent, and when this worker waits.
    """

    def __init__(self, group: Group, waits: Waits) -> None:
        self.rank, self.size = group.rank, group.size
        self._group, self._waits = group, waits
        self._posts = None if is_fake() else group.shared_posts()

    @property
    def words(self) -> tuple[str, ...]:
        """Where stages send to each other, if it is not over connections, in a line for the log."""
        shared = self._posts is not None
        return ("transfers: in memory that the workers share",) if shared else ()

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Arrival:
        """Start to send; the tensor must not be changed until the transfer has completed."""
        self._waits.note("send", tensor.nbytes, 2)
        given = tensor.detach().contiguous()
        if self._posts is not None and given.nbytes <= LARGEST:
            return self._posts.send(given, to, tag)
        return self._group.send(given, to, tag)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Arrival:
        """Start to receive."""
        if self._posts is not None and tensor.nbytes <= LARGEST:
            return self._posts.receive(tensor, source, tag)
        return self._group.receive(tensor, source, tag)

    def arrive(self, coming: Arrival) -> None:
        """Wait for a transfer, and record the wait."""
        self._waits.begin()
        coming.wait()
        self._waits.end()

    def average(self, gradients: Sequence[torch.Tensor], copies: Group) -> None:
        """Average gradients over the workers that have the same stages."""
        by_type: dict[torch.dtype, list[torch.Tensor]] = {}
        for gradient in gradients:
            by_type.setdefault(gradient.dtype, []).append(gradient)
        for same in by_type.values():
            flat = torch.cat([gradient.reshape(-1) for gradient in same])
            self._waits.note("allreduce", flat.nbytes, copies.size)
            self._waits.begin()
            copies.sum(flat)
            self._waits.end()
            flat /= copies.size
            sizes = [one.numel() for one in same]
            for gradient, mean in zip(same, flat.split_with_sizes(sizes), strict=True):
                gradient.copy_(mean.view_as(gradient))
