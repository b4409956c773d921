"""Codec check: whether a codec can save time on the network of a run.

A codec that saves 98 % of the bytes makes training slower on a fast network, and its compression
ratio does not show that (`docs/decisions/0058-break-even.md`).

Encoding and decoding are measured on random numbers, for a fraction of a second; times and sizes
are scaled to the size of the model. `manyhands codecs` measures on a job's own gradients.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from manyhands.codecs import BFloat16, Codec, Half
from manyhands.costs import CodingCost
from manyhands.costs.compression import allreduce_coding_seconds
from manyhands.parameters.initial.deferred import on_meta
from manyhands.protocols.compression.timing import measure
from manyhands.strategies import protocol_of
from manyhands.units import bandwidth_words, seconds_words

if TYPE_CHECKING:
    from manyhands.job import Job
    from manyhands.live.request import Request
    from manyhands.strategies import Strategy

_SAMPLE = 1 << 16
"""Elements of the vectors that are encoded."""
_SECONDS = 0.02
"""Measurement of one codec; each is used three times at least."""


@dataclass(frozen=True)
class ExchangeCost:
    """What the codecs of a strategy save and take when a worker exchanges with others."""

    saved: float
    """Bytes that are not sent by or to a worker."""
    seconds: float
    """Seconds of encoding and decoding."""

    @property
    def pays_below(self) -> float:
        """Bytes per second of the link below which less time is taken than saved."""
        return max(0.0, self.saved) / self.seconds


def codec_note(request: Request, job: Job) -> str:
    """A sentence if the codec of a run cannot save time on its network; otherwise empty.

    On several hosts the network must have been declared. On one host nothing is said if workers are
    slowed on purpose: the run then stands for another one.
    """
    codecs = codecs_of(request.strategy, request.workers)
    alone = request.hosts is None
    if not codecs or request.workers == 1 or (alone and request.slow):
        return ""
    if not alone and request.link is None:
        return ""
    size = 0
    with contextlib.suppress(Exception):  # not every model can be created on the meta device
        size = sum(one.numel() for one in on_meta(job.model).parameters() if one.requires_grad)
    if not size:
        return ""
    cost = exchange_cost(request.strategy, request.workers, codecs, size)
    return words(str(codecs[0]), cost, None if alone else request.link)


def words(codec: str, cost: ExchangeCost, link: float | None) -> str:
    """The sentence.

    Args:
        codec: the codec.
        cost: what it saves and takes.
        link: bytes per second; None for one host.

    >>> cost = ExchangeCost(saved=150e3, seconds=0.004)
    >>> words("topk(0.01)", cost, None)
    'codec=topk(0.01) takes about 4 ms per exchange and saves no time on one host; it pays on \
networks below 300 Mbit/s'
    >>> words("topk(0.01)", cost, 125e6)
    'codec=topk(0.01) takes about 4 ms per exchange and saves 1.2 ms on links of 1 Gbit/s; it pays \
on networks below 300 Mbit/s'
    >>> words("topk(0.01)", cost, 12.5e6)
    ''
    """
    if link is not None and link <= cost.pays_below:
        return ""
    where = (
        "no time on one host"
        if link is None
        else f"{seconds_words(max(0.0, cost.saved) / link)} on links of {bandwidth_words(link)}"
    )
    below = bandwidth_words(cost.pays_below)
    pays = f"it pays on networks below {below}" if cost.pays_below else "it saves no bytes"
    return (
        f"codec={codec} takes about {seconds_words(cost.seconds)} per exchange and saves {where}; "
        f"{pays}"
    )


def codecs_of(strategy: Strategy, workers: int) -> tuple[Codec, ...]:
    """The codecs of a strategy: of its pushes and of the answers, or of its collectives."""
    protocol = protocol_of(strategy)
    if protocol is None:
        codec = getattr(strategy, "codec", None)
        return (codec,) if isinstance(codec, Codec) else ()
    codings = (
        protocol.coding_of(server, workers) for server in range(protocol.count_servers(workers))
    )
    coding = next((one for one in codings if one is not None), None)
    if coding is None:
        return ()
    return tuple(codec for codec in (coding.pushes, coding.answers) if codec is not None)


def exchange_cost(
    strategy: Strategy, workers: int, codecs: tuple[Codec, ...], size: int
) -> ExchangeCost:
    """Measure the codecs of a strategy, for parameters of `size` elements of float32."""
    costs = {codec: _measured(codec, size) for codec in codecs}
    if protocol_of(strategy) is not None:
        found = [costs[codec] for codec in codecs]
        saved = sum(cost.dense - cost.coded for cost in found)
        return ExchangeCost(saved, sum(cost.seconds for cost in found))
    (codec,) = codecs
    cost = costs[codec]
    saved = 2 * (cost.dense - cost.coded) * (workers - 1) / workers
    summed = isinstance(codec, Half | BFloat16)
    return ExchangeCost(saved, allreduce_coding_seconds(cost, workers, summed=summed))


def _measured(codec: Codec, size: int) -> CodingCost:
    """The cost of a vector of `size` elements, from a shorter one."""
    source = torch.Generator().manual_seed(0)
    sample = min(size, _SAMPLE)
    updates = [[torch.randn(sample, generator=source)] for _ in range(2)]
    cost = measure(codec, updates, time.perf_counter, _SECONDS)
    scale = size / sample
    coded = codec.wire_bytes(size) if codec.fixed_size else scale * cost.coded
    return CodingCost(4 * size, coded, scale * cost.encode, scale * cost.decode)
