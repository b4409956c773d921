"""Mean of a bucket by payloads: parts are encoded, exchanged, averaged, encoded and gathered."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from manyhands.codecs import CodecError, ErrorFeedback
from manyhands.placements.compression.bucket import Bucket, BucketStates
from manyhands.placements.compression.payload import part_sizes
from manyhands.sampling.permutation import mix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from manyhands.codecs import Codec
    from manyhands.placements.compression.exchange import Exchange

_CODEC: Final = 7
"""Purpose for `mix`: random numbers of codecs."""


@dataclass(frozen=True, eq=False)
class _Streams:
    """The encoders of a bucket."""

    own: list[ErrorFeedback]
    """For this worker's gradient, one per part."""
    mean: ErrorFeedback
    """For the mean of the part that this worker averages."""
    sizes: list[int]
    """Elements of each part."""
    rank: int

    def unsent(self) -> torch.Tensor | None:
        """What all encoders have not sent, as this worker's share of a sum over all workers.

        What was not sent of the mean is N times as much of the sum.
        """
        residuals = [one.residual for one in self.own]
        like = next((one for one in residuals if one is not None), None)
        if like is None:
            return None
        parts = [
            like.new_zeros(size) if residual is None else residual.clone()
            for residual, size in zip(residuals, self.sizes, strict=True)
        ]
        if self.mean.residual is not None:
            parts[self.rank].add_(self.mean.residual, alpha=len(self.sizes))
        return torch.cat(parts)


class ByParts:
    """The mean over N workers, of which each averages one of N parts of a bucket.

    Worker n encodes its N parts and sends part p to worker p, which decodes and averages the parts
    that it receives in the order of ranks, encodes the mean, and sends it to all. All workers, also
    worker p, decode the same payloads, so the results are equal to the bit. With error feedback
    there are two residuals: of every worker's own parts, and of the mean.

    Args:
        codec: the codec.
        exchange: the workers.
        seed: the job's seed.
    """

    def __init__(self, codec: Codec, exchange: Exchange, seed: int) -> None:
        self._codec = codec
        self._exchange = exchange
        self._seed = seed
        self._steps: Counter[int] = Counter()
        """Reductions so far, by the number of the bucket."""
        self.states: BucketStates[_Streams] = BucketStates(self._make, _Streams.unsent)

    def reduce(self, bucket: Bucket) -> None:
        """Replace the bucket's vector by the mean."""
        streams = self.states.of(bucket)
        rank, workers = self._exchange.rank, self._exchange.size
        itemsize = bucket.vector.element_size()
        limits = [self._codec.wire_bytes(size, itemsize) if size else 0 for size in streams.sizes]
        seed = mix(self._seed, _CODEC, self._steps[bucket.index], rank, bucket.index)
        self._steps[bucket.index] += 1
        parts = bucket.vector.split_with_sizes(streams.sizes)
        with self._exchange.coding():
            payloads = [
                encoder.encode(part, mix(seed, at)) if len(part) else _nothing()
                for at, (encoder, part) in enumerate(zip(streams.own, parts, strict=True))
            ]
        lengths = self._lengths(payloads, [limits[rank]] * workers)
        received = self._exchange.scatter(payloads, lengths)
        with self._exchange.coding():
            mean = self._decoded_mean(received, bucket.vector.new_empty(streams.sizes[rank]))
            payload = streams.mean.encode(mean, mix(seed, workers)) if len(mean) else _nothing()
        gathered = self._exchange.gather(payload, self._lengths([payload] * workers, limits))
        with self._exchange.coding():
            for part, one in zip(parts, gathered, strict=True):
                if len(part):
                    self._codec.decode(one, part)

    def unsent(self) -> dict[str, torch.Tensor]:
        """What was not sent yet of this worker's share of the sum, by parameter, as vectors."""
        return self.states.unsent()

    def kept(self) -> dict[str, torch.Tensor]:
        """Nothing else."""
        return {}

    def carry(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Begin with what was not sent before."""
        self.states.carry(tensors)

    def _make(self, bucket: Bucket, carried: torch.Tensor | None) -> _Streams:
        sizes = part_sizes(bucket.vector.numel(), self._exchange.size)
        own = [ErrorFeedback(self._codec) for _ in sizes]
        if carried is not None:
            for encoder, part in zip(own, carried.split_with_sizes(sizes), strict=True):
                encoder.residual = part.clone()
        return _Streams(own, ErrorFeedback(self._codec), sizes, self._exchange.rank)

    def _decoded_mean(self, payloads: Sequence[torch.Tensor], mean: torch.Tensor) -> torch.Tensor:
        """The mean of this worker's part, added up in the order of ranks."""
        if not len(mean):
            return mean
        one = torch.empty_like(mean)
        for rank, payload in enumerate(payloads):
            self._codec.decode(payload, one if rank else mean)
            if rank:
                mean.add_(one)
        return mean.div_(self._exchange.size)

    def _lengths(self, payloads: Sequence[torch.Tensor], limits: Sequence[int]) -> Sequence[int]:
        """The lengths of the payloads that will be received; those that vary are exchanged."""
        if self._codec.fixed_size:
            return limits
        lengths = self._exchange.lengths([len(payload) for payload in payloads])
        if any(length > limit for length, limit in zip(lengths, limits, strict=True)):
            raise CodecError(f"expected at most {[*limits]} bytes, got {lengths}")
        return lengths


def _nothing() -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8)
