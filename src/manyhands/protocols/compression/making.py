"""The endpoint of a worker, with the codecs of its protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.protocols.compression.worker import CodedEndpoint, number_of
from manyhands.sampling.permutation import mix

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.endpoint import Endpoint
    from manyhands.parameters import Layout, Shard
    from manyhands.protocols.compression.coding import Coding, HasCodings
    from manyhands.protocols.compression.worker import Effort

_WORKER = 4
"""Purpose for `mix`: the random rounding of a worker."""


def with_codecs(
    inner: Endpoint,
    protocol: HasCodings,
    rank: int,
    workers: int,
    layout: Layout,
    seed: int,
    note: Callable[[float], None] = lambda _: None,
    effort: Effort | None = None,
    kind: type[CodedEndpoint] | None = None,
) -> CodedEndpoint | None:
    """The endpoint of a worker under the codecs of a protocol; None if it has none.

    Args:
        inner: the endpoint that sends.
        protocol: the protocol.
        rank: the worker's rank.
        workers: number of workers.
        layout: the shards of the model.
        seed: the job's seed.
        note: as in `CodedEndpoint`.
        effort: as in `CodedEndpoint`.
        kind: a subclass of `CodedEndpoint`.
    """
    servers = range(protocol.count_servers(workers))
    if all(protocol.coding_of(server, workers) is None for server in servers):
        return None
    own = rank if protocol.peer_servers else None

    def coding(name: str) -> Coding | None:
        server = number_of(name)
        return None if server == own else protocol.coding_of(server, workers)

    def shard(name: str) -> Shard:
        return layout.shards[number_of(name) % len(layout.shards)]

    made = kind or CodedEndpoint
    return made(inner, shard, coding, mix(seed, _WORKER, rank), note, effort)
