"""Step times with a codec, and the bandwidth below which it saves time.

A codec takes time to save bytes. A vector of m bytes, of which c are sent, takes m/B seconds on a
link of bandwidth B without it, and e + c/B + d with it, if it is encoded in e and decoded in d
seconds. It pays where

    (m − c)/B > e + d,    which is below the bandwidth    B = (m − c)/(e + d).

Computation and latency are the same with and without it. What overlaps with the backward pass, and
links that several workers share, are not part of these formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from manyhands.costs.allreduce import ring
from manyhands.costs.collectives import allreduce_bytes

PAYLOAD_SHARE = 1448 / 1514
"""Share of a full Ethernet frame that TCP can use."""


@dataclass(frozen=True)
class CodingCost:
    """Bytes and seconds of sending one vector.

    >>> CodingCost(dense=1e6, coded=1e4, encode=0.003, decode=0.001).seconds
    0.004
    """

    dense: float
    """Bytes of the vector."""
    coded: float
    """Bytes that are sent."""
    encode: float = 0.0
    """Seconds of encoding, with what is kept for the next vector (error feedback)."""
    decode: float = 0.0

    @classmethod
    def plain(cls, dense: float) -> CodingCost:
        """The cost without a codec."""
        return cls(dense, dense)

    @property
    def seconds(self) -> float:
        """Seconds of encoding and decoding."""
        return self.encode + self.decode

    def saved(self, bandwidth: float) -> float:
        """Seconds that a link of `bandwidth` bytes per second is used less."""
        return (self.dense - self.coded) / bandwidth

    def on_link(self, bandwidth: float, latency: float = 0.0) -> float:
        """Seconds from the vector to the decoded vector at the other end of a link."""
        return self.encode + self.coded / bandwidth + latency + self.decode


def pays_below(cost: CodingCost) -> float:
    """Bytes per second of the link below which sending encoded vectors is faster; 0 for none.

    >>> pays_below(CodingCost(dense=1.01e6, coded=1e4, encode=0.003, decode=0.001)) / 1e6
    250.0
    >>> pays_below(CodingCost.plain(1e6))
    0.0
    """
    return _ratio(cost.dense - cost.coded, cost.seconds)


def push_step_seconds(
    compute: float, push: CodingCost, answer: CodingCost, bandwidth: float, latency: float = 0.0
) -> float:
    """Seconds of a step that computes, pushes an update to a server, and waits for its answer.

    >>> plain = CodingCost.plain(1e6)
    >>> round(push_step_seconds(0.01, plain, plain, bandwidth=12.5e6, latency=0.001), 3)
    0.172
    """
    return compute + push.on_link(bandwidth, latency) + answer.on_link(bandwidth, latency)


def allreduce_coding_seconds(cost: CodingCost, workers: int, *, summed: bool = False) -> float:
    """Seconds of encoding and decoding in a step of an allreduce among N workers.

    A worker encodes its vector in N parts, decodes N parts of the length m/N, encodes their mean,
    and decodes the N means: (1 + 1/N)·e + 2·d.

    Args:
        cost: the cost of one vector.
        workers: N.
        summed: whether the collective adds encoded numbers up, as with half: then e + d.

    >>> allreduce_coding_seconds(CodingCost(1e6, 1e4, encode=4.0, decode=1.0), workers=4)
    7.0
    """
    if workers == 1:
        return 0.0
    if summed:
        return cost.seconds
    return (1 + 1 / workers) * cost.encode + 2 * cost.decode


def allreduce_step_seconds(
    compute: float,
    cost: CodingCost,
    workers: int,
    bandwidth: float,
    latency: float = 0.0,
    *,
    summed: bool = False,
) -> float:
    """Seconds of a step that computes, and averages gradients over N workers.

    Each worker sends 2·c·(N − 1)/N bytes. Around a ring, each of 2·(N − 1) messages has the
    latency; encoded parts go to all workers at once, twice.

    Args:
        compute: seconds of the gradient.
        cost: the cost of one vector.
        workers: N.
        bandwidth: bytes per second of each worker's link.
        latency: seconds of a message.
        summed: whether the collective adds encoded numbers up, or there is no codec.

    >>> round(allreduce_step_seconds(0.01, CodingCost.plain(1e6), 4, 12.5e6, summed=True), 3)
    0.13
    """
    if workers == 1:
        return compute
    messages = ring(cost.coded, workers).rounds if summed else 2
    sent = allreduce_bytes(cost.coded, workers)
    coding = allreduce_coding_seconds(cost, workers, summed=summed)
    return compute + coding + sent / bandwidth + messages * latency


def allreduce_pays_below(cost: CodingCost, workers: int, *, summed: bool = False) -> float:
    """As `pays_below`, for an allreduce among N workers; latency is not considered.

    >>> cost = CodingCost(dense=1.01e6, coded=1e4, encode=0.003, decode=0.001)
    >>> round(allreduce_pays_below(cost, 4) / 1e6)
    261
    """
    saved = allreduce_bytes(cost.dense - cost.coded, workers)
    return _ratio(saved, allreduce_coding_seconds(cost, workers, summed=summed))


def _ratio(saved: float, seconds: float) -> float:
    if saved <= 0:
        return 0.0
    return saved / seconds if seconds > 0 else math.inf
