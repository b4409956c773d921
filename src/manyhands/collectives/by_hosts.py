"""By hosts: the workers of a host sum among themselves, and only then with those of other hosts.

H hosts have L workers each. In a host, a ring's reduce-scatter leaves each of its workers with the
host's sum of one of L blocks. Workers that have the same block, one of each host, sum it in a ring.
At last a ring's all-gather in the host gives every worker the other blocks.

2(L − 1) rounds within hosts and 2(H − 1) between them, and 2m(N − 1)/N bytes per worker, as in one
ring of all N. To other hosts a host sends 2m(H − 1)/H of them. In one ring it is 2m(N − 1)/N if
workers that follow each other are on one host, and up to L times as much if they are not.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from manyhands.collectives.exchange import ExchangeRound, ExchangeTable, PartMessage
from manyhands.collectives.ring import ring, ring_all_gather, ring_reduce_scatter

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence


def by_hosts(hosts: Sequence[Hashable]) -> ExchangeTable:
    """Allreduce of workers on these hosts, one for each rank.

    A ring of all workers, unless there are several hosts with the same number of workers, and with
    more than one each.

    >>> [one.sends.peer for one in by_hosts("aabb").rounds(0)]
    [1, 2, 2, 1]
    >>> [one.sends.peer for one in by_hosts("abab").rounds(0)]
    [2, 1, 1, 2]
    """
    groups = local_ranks(hosts)
    if not groups:
        return ring(len(hosts))
    local, count = len(groups[0]), len(groups)
    within = ring_reduce_scatter(local), ring_all_gather(local)
    places = {
        rank: (host, place) for host, at in enumerate(groups) for place, rank in enumerate(at)
    }

    def rounds(rank: int) -> Iterator[ExchangeRound]:
        host, place = places[rank]
        block = (place + 1) % local
        counterparts = [at[place] for at in groups]
        return chain(
            _moved(within[0].rounds(place), groups[host], scale=count),
            _moved(ring(count).rounds(host), counterparts, first=block * count),
            _moved(within[1].rounds(place), groups[host], scale=count),
        )

    return ExchangeTable(len(hosts), local * count, rounds)


def local_ranks(hosts: Sequence[Hashable]) -> list[list[int]]:
    """The ranks of each host, if there are several with the same number of workers above 1.

    >>> local_ranks("abab"), local_ranks("aab"), local_ranks("aa")
    ([[0, 2], [1, 3]], [], [])
    """
    groups: dict[Hashable, list[int]] = {}
    for rank, host in enumerate(hosts):
        groups.setdefault(host, []).append(rank)
    sizes = {len(ranks) for ranks in groups.values()}
    return list(groups.values()) if len(groups) > 1 and sizes != {1} and len(sizes) == 1 else []


def _moved(
    rounds: Iterable[ExchangeRound], peers: Sequence[int], *, scale: int = 1, first: int = 0
) -> Iterator[ExchangeRound]:
    """Rounds among other workers, whose parts are `scale` parts each and begin at `first`."""

    def moved(message: PartMessage | None) -> PartMessage | None:
        if message is None:
            return None
        start, stop = (first + scale * place for place in (message.start, message.stop))
        return PartMessage(peers[message.peer], start, stop, message.adds)

    for one in rounds:
        yield ExchangeRound(moved(one.sends), moved(one.receives))
