"""Buckets that are reduced in 16 bits by the collective itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from manyhands.codecs.kernels.finite import not_finite
from manyhands.placements.compression.bucket import Bucket, BucketStates, without_not_finite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch._C._distributed_c10d import GradBucket

    from manyhands.codecs.kernels.finite import NotFinite
    from manyhands.codecs.precision import Rounded
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


class LowerPrecision:
    """A communication hook of DDP that casts each bucket, sums it by an allreduce, and widens it.

    A worker's share of the mean, ΔW_n/N, is rounded, and with error feedback what was rounded off
    is added to its next share. Sums of the collective are rounded as well; that is not fed back.

    Args:
        codec: the codec, whose payload is of a dtype that can be summed.
        group: the workers.
        waits: counts the payload.
        names: the name of each parameter, by its id.
    """

    def __init__(
        self, codec: Rounded, group: Group, waits: Waits, names: Mapping[int, str]
    ) -> None:
        self._codec = codec
        self._dtype: torch.dtype = getattr(torch, codec.dtype)
        self._group = group
        self._waits = waits
        self._names = names
        self.refused: NotFinite = ""
        """What a bucket of this worker had, for which it sent zeros."""
        self.states: BucketStates[torch.Tensor] = BucketStates(_residual, lambda residual: residual)

    def __call__(self, given: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start the reduction of a bucket."""
        bucket = Bucket.of(given, self._names)
        self.refused = without_not_finite(bucket) or self.refused
        vector = bucket.vector
        # Divided first: the sum of many large halves would be infinite.
        vector.div_(self._group.size)
        if self._codec.feeds_back:
            residual = self.states.of(bucket)
            residual.add_(vector)
            cast = residual.to(self._dtype)
            residual.sub_(cast)
            if not_finite(residual):
                # Numbers beyond the range of the dtype: no worker will step with them.
                residual.zero_()
        else:
            cast = vector.to(self._dtype)
        self._waits.tally("allreduce", cast.nbytes, self._group.size)

        def widen(done: torch.futures.Future[Any]) -> torch.Tensor:
            done.value()
            return vector.copy_(cast)

        started: torch.futures.Future[Any] = self._group.handle.allreduce([cast]).get_future()
        return started.then(widen)


def _residual(bucket: Bucket, carried: torch.Tensor | None) -> torch.Tensor:
    return torch.zeros_like(bucket.vector) if carried is None else carried
