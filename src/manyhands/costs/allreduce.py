"""Time of an allreduce: the sum of n workers' vectors of m bytes, known to each of them.

A message of m bytes takes α + m/β seconds on a link of latency α and bandwidth β. A worker sends
one message and receives one at a time, in both directions at once. Adding up a vector of m bytes
takes m/γ seconds; by default it is free. A cost counts what is on the longest chain of messages,

    seconds = rounds·α + transferred/β + reduced/γ,

and what all workers send together. Vectors are divided into equal parts of m/n bytes, without
rounding. For one worker an allreduce costs nothing.

Numbers of workers that are no power of two: tree and ring are defined for them. Butterfly and
halving are for p = 2^⌊log2 n⌋ workers; each of the other r = n − p sends its vector to one of the p
before, and gets the sum back after, which adds two messages of m bytes and one addition.

Servers are processes beside the workers. All of their messages are on their way at the same time,
so that latency counts once in each direction, whatever the number of workers. The bound of
exchanges between workers therefore does not hold for them where m is small.

Sources: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
MPICH", 2005 (tree, butterfly, halving); Rabenseifner, "Optimization of Collective Reduction
Operations", 2004 (halving); Patarasuk, Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters
of Workstations", 2009 (ring); Chan, Heimlich, Purkayastha, van de Geijn, "Collective Communication:
Theory, Practice, and Experience", 2007 (the bound); Ben-Nun, Hoefler, "Demystifying Parallel and
Distributed Deep Learning", 2019 (servers).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from manyhands.costs.collectives import allreduce_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class LinkSpeed:
    """Latency and bandwidth of each worker's link, and the speed of adding vectors up.

    >>> from manyhands import units
    >>> LinkSpeed(units.seconds("50us"), units.bandwidth("10gbit")).bandwidth
    1250000000.0
    """

    latency: float
    """Seconds: α."""
    bandwidth: float
    """Bytes per second: β."""
    reduction: float = math.inf
    """Bytes per second that are added up: γ."""

    def __post_init__(self) -> None:
        if not 0 <= self.latency < math.inf:
            raise ValueError(f"latency must be at least 0 seconds, got {self.latency}")
        for name in ("bandwidth", "reduction"):
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"{name} must be above 0 bytes per second, got {getattr(self, name)}"
                )


@dataclass(frozen=True)
class AllreduceCost:
    """Messages and bytes of an allreduce.

    >>> cost = AllreduceCost(rounds=2, transferred=100.0, reduced=50.0, messages=4, sent=200.0)
    >>> cost.seconds(LinkSpeed(latency=1.0, bandwidth=10.0, reduction=25.0))
    14.0
    """

    rounds: int
    """Messages that follow each other."""
    transferred: float
    """Bytes that follow each other on links."""
    reduced: float
    """Bytes that are added up one after another."""
    messages: int
    """Messages of all workers and servers together."""
    sent: float
    """Bytes of all workers and servers together."""

    def seconds(self, link: LinkSpeed) -> float:
        """rounds·α + transferred/β + reduced/γ."""
        return (
            self.rounds * link.latency
            + self.transferred / link.bandwidth
            + self.reduced / link.reduction
        )

    def then(self, other: AllreduceCost) -> AllreduceCost:
        """The cost of both, one after the other."""
        return AllreduceCost(
            self.rounds + other.rounds,
            self.transferred + other.transferred,
            self.reduced + other.reduced,
            self.messages + other.messages,
            self.sent + other.sent,
        )


def tree(size: float, workers: int) -> AllreduceCost:
    """Binomial tree: the sum goes up to one worker, which sends it down the same tree.

    2⌈log2 n⌉·(α + m/β) + ⌈log2 n⌉·m/γ; 2(n − 1) messages, 2m(n − 1)/n bytes per worker on average,
    of which the root sends ⌈log2 n⌉·m. Exact for every n. Source: Thakur et al., 2005.

    >>> tree(100, 8)
    AllreduceCost(rounds=6, transferred=600, reduced=300, messages=14, sent=1400)
    """
    _check(size, workers)
    height = _ceil_log2(workers)
    edges = 2 * (workers - 1)
    return AllreduceCost(2 * height, 2 * height * size, height * size, edges, edges * size)


def butterfly(size: float, workers: int) -> AllreduceCost:
    """Butterfly (recursive doubling): in round k, workers at distance 2^k exchange their sums.

    log2 n·(α + m/β + m/γ) for a power of two; n·log2 n messages, m·log2 n bytes per worker. For
    other n: (⌊log2 n⌋ + 2)·(α + m/β) + (⌊log2 n⌋ + 1)·m/γ. Source: Thakur et al., 2005.

    >>> butterfly(100, 8)
    AllreduceCost(rounds=3, transferred=300, reduced=300, messages=24, sent=2400)
    >>> butterfly(100, 9).rounds
    5
    """
    _check(size, workers)
    power = _floor_log2(workers)
    messages = 2**power * power
    inner = AllreduceCost(power, power * size, power * size, messages, messages * size)
    return inner.then(_remainder(size, workers))


def ring(size: float, workers: int) -> AllreduceCost:
    """Ring (pipeline): parts are added up around the ring, then their sums go around it.

    2(n − 1)·α + 2m(n − 1)/n/β + m(n − 1)/n/γ; 2n(n − 1) messages, 2m(n − 1)/n bytes per worker.
    Exact for every n. Source: Patarasuk, Yuan, 2009.

    >>> ring(100, 4)
    AllreduceCost(rounds=6, transferred=150.0, reduced=75.0, messages=24, sent=600.0)
    """
    _check(size, workers)
    rounds = 2 * (workers - 1)
    own = allreduce_bytes(size, workers)
    return AllreduceCost(rounds, own, own / 2, workers * rounds, workers * own)


def halving(size: float, workers: int) -> AllreduceCost:
    """Reduce-scatter by recursive halving, then all-gather by recursive doubling (Rabenseifner).

    2·log2 n·α + 2m(n − 1)/n/β + m(n − 1)/n/γ for a power of two; 2n·log2 n messages, 2m(n − 1)/n
    bytes per worker. For other n: p = 2^⌊log2 n⌋ takes the place of n, and 2·(α + m/β) + m/γ are
    added. Source: Rabenseifner, 2004; Thakur et al., 2005.

    >>> halving(100, 4)
    AllreduceCost(rounds=4, transferred=150.0, reduced=75.0, messages=16, sent=600.0)
    """
    _check(size, workers)
    power = _floor_log2(workers)
    own = allreduce_bytes(size, 2**power)
    messages = 2**power * 2 * power
    inner = AllreduceCost(2 * power, own, own / 2, messages, 2**power * own)
    return inner.then(_remainder(size, workers))


def lower_bound(size: float, workers: int) -> AllreduceCost:
    """Lower bound of every exchange between workers, for each of its terms.

    ⌈log2 n⌉·α + 2m(n − 1)/n/β + m(n − 1)/n/γ. Each term is reached by an algorithm; none reaches
    all of them at once, for n > 2. Fewer than 2(n − 1) messages cannot bring all vectors to all
    workers. Source: Chan et al., 2007.

    >>> lower_bound(100, 8)
    AllreduceCost(rounds=3, transferred=175.0, reduced=87.5, messages=14, sent=1400.0)
    """
    _check(size, workers)
    own = allreduce_bytes(size, workers)
    return AllreduceCost(_ceil_log2(workers), own, own / 2, 2 * (workers - 1), workers * own)


def sharded_servers(size: float, workers: int, servers: int) -> AllreduceCost:
    """S servers with an equal part each: every worker sends S parts and gets S sums back.

    2α + 2·max(n/S, 1)·m/β + (n − 1)·m/S/γ; 2nS messages, 2mn bytes, of which a worker sends m. A
    server's link carries n parts; with more servers than workers, a worker's own link is the limit.
    Source: Ben-Nun, Hoefler, 2019: T = 2L + 2P·γ(m/S)·G.

    Args:
        size: m.
        workers: n.
        servers: S.

    >>> sharded_servers(100, 8, 4)
    AllreduceCost(rounds=2, transferred=400.0, reduced=175.0, messages=64, sent=1600)
    """
    _check(size, workers)
    if servers < 1:
        raise ValueError(f"servers must be at least 1, got {servers}")
    part = size / servers
    carried = 2 * max(workers, servers) * part
    messages = 2 * workers * servers
    return AllreduceCost(2, carried, (workers - 1) * part, messages, 2 * workers * size)


def one_server(size: float, workers: int) -> AllreduceCost:
    """One parameter server: 2α + 2nm/β + (n − 1)·m/γ; 2n messages, of which a worker sends m bytes.

    The only shard of `sharded_servers`. Source: Ben-Nun, Hoefler, 2019.

    >>> one_server(100, 8)
    AllreduceCost(rounds=2, transferred=1600.0, reduced=700.0, messages=16, sent=1600)
    """
    return sharded_servers(size, workers, 1)


def hierarchical_servers(size: float, workers: int, islands: int | None = None) -> AllreduceCost:
    """A server for each of I islands, and one for these servers; all links are alike.

    4α + 2(⌈n/I⌉ + I)·m/β + (⌈n/I⌉ + I − 2)·m/γ; 2(n + I) messages. Exact if islands have equally
    many workers; otherwise smaller ones may be early. ⌈n/I⌉ + I is least for I near √n.
    Links between islands that differ: `hierarchical_seconds`. Source: one server's formula, twice.

    Args:
        size: m.
        workers: n.
        islands: I; √n, rounded, by default.

    >>> hierarchical_servers(100, 16)
    AllreduceCost(rounds=4, transferred=1600.0, reduced=600.0, messages=40, sent=4000)
    """
    _check(size, workers)
    islands = _islands(workers, islands)
    within, between = one_server(size, -(-workers // islands)), one_server(size, islands)
    both = within.then(between)
    messages = 2 * (workers + islands)
    return AllreduceCost(both.rounds, both.transferred, both.reduced, messages, messages * size)


def hierarchical_seconds(
    size: float, workers: int, islands: int | None, inner: LinkSpeed, outer: LinkSpeed
) -> float:
    """Seconds of `hierarchical_servers` with other links between the islands' servers.

    Args:
        size: m.
        workers: n.
        islands: I; √n, rounded, by default.
        inner: links within an island.
        outer: links between the islands' servers and the outer server.

    >>> fast, slow = LinkSpeed(0.0, 1000.0), LinkSpeed(1.0, 100.0)
    >>> hierarchical_seconds(100, 16, 4, fast, slow)
    10.8
    """
    _check(size, workers)
    islands = _islands(workers, islands)
    within, between = one_server(size, -(-workers // islands)), one_server(size, islands)
    return within.seconds(inner) + between.seconds(outer)


def _islands(workers: int, islands: int | None) -> int:
    if islands is None:
        return max(1, round(math.sqrt(workers)))
    if not 1 <= islands <= workers:
        raise ValueError(f"islands must be from 1 to the {workers} workers, got {islands}")
    return islands


BETWEEN_WORKERS: Final[Mapping[str, Callable[[float, int], AllreduceCost]]] = {
    "tree": tree,
    "butterfly": butterfly,
    "ring": ring,
    "halving": halving,
}
"""By name, the algorithms that need no process beside the workers."""


def _remainder(size: float, workers: int) -> AllreduceCost:
    """The cost of workers beyond a power of two: a message before, and one after."""
    beyond = workers - 2 ** _floor_log2(workers)
    if not beyond:
        return AllreduceCost(0, 0, 0, 0, 0)
    return AllreduceCost(2, 2 * size, size, 2 * beyond, 2 * beyond * size)


def _ceil_log2(number: int) -> int:
    return (number - 1).bit_length()


def _floor_log2(number: int) -> int:
    return number.bit_length() - 1


def _check(size: float, workers: int) -> None:
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if not 0 <= size < math.inf:
        raise ValueError(f"size must be at least 0 bytes, got {size}")
