"""Reduction of fake buckets, for dry runs: the memory and the collectives of a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from manyhands.costs import TensorSize
from manyhands.placements.compression.payload import bucket_collectives, kept_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from manyhands.codecs import Codec
    from manyhands.codecs.reducers import Reducer
    from manyhands.transport.waits import Waits


class FakeReduction:
    """Notes the collectives of each bucket, and holds as much memory as a codec keeps of it.

    Args:
        codec: how buckets are sent; None for as they are.
        workers: number of workers.
        waits: receives the collectives.
    """

    def __init__(self, codec: Codec | Reducer | None, workers: int, waits: Waits) -> None:
        self._codec = codec
        self._workers = workers
        self._waits = waits
        self._kept: dict[int, torch.Tensor] = {}

    def __call__(self, index: int, parameters: Sequence[nn.Parameter]) -> None:
        """Reduce the bucket of this number."""
        bucket = [
            TensorSize(
                "",
                parameter.nbytes,
                rows=parameter.shape[0] if parameter.dim() else 1,
                itemsize=parameter.element_size(),
            )
            for parameter in parameters
        ]
        kept = kept_bytes(self._codec, bucket, self._workers)
        there = self._kept.get(index)
        if kept and (there is None or len(there) != kept):
            if there is not None:
                # Buckets were built again; what was kept of the first one is divided among them.
                self._kept.clear()
            self._kept[index] = torch.empty(kept, dtype=torch.uint8)
        exchanged = bucket_collectives(self._codec, bucket, self._workers)
        if self._codec is not None:
            sent = torch.empty(exchanged[0].size, dtype=torch.uint8)
            received = torch.empty_like(sent) if len(exchanged) > 1 else None
            del sent, received
        for one in exchanged:
            self._waits.note(one.kind, one.size, self._workers)
