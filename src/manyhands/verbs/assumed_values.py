"""What a virtual run assumes: values that nothing gave or measured."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Final

from manyhands import assumptions
from manyhands.cluster.text import LATENCY
from manyhands.codecs import Codec
from manyhands.costs.coding_speed import FREE, MACHINE
from manyhands.notation import Value
from manyhands.trace import Setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from manyhands.cluster import Cluster
    from manyhands.costs import CodingSpeeds
    from manyhands.protocols import StrategyProtocol
    from manyhands.verbs.asked import Asked
    from manyhands.virtual import ProcessHosts

TIMES: Final = "lognormal(0.1, cv=0.3)"
"""Seconds of a batch that are assumed where none are given."""
_ASSUMED: Final = frozenset(("times", "coding", "bandwidth", "latency"))
"""Settings that say what machines can do: without a source they are assumed."""


def source_of(name: str, asked: Asked) -> str:
    """Where a setting comes from that was not asked for by its name."""
    by_cluster = asked.cluster is not None and name in ("bandwidth", "latency")
    return assumptions.SOURCE if name in _ASSUMED and not by_cluster else "default"


def assumed_settings(
    values: Mapping[str, str | None], asked: Asked, places: ProcessHosts, servers: int
) -> Iterator[Setting]:
    """What is assumed although it is no setting of its own: what takes no time, and the network."""
    if servers and asked.service is None and not values["service"]:
        yield Setting("service", "0 s for an update", assumptions.SOURCE)
    if asked.cluster is None and asked.bandwidth is None:
        if len(places.workers) > 1:
            words = "one host, 2 GB/s between processes"
            yield Setting("bandwidth", words, assumptions.SOURCE)
    elif asked.cluster is not None and assumes_latency(places.cluster):
        yield Setting("latency", f"{LATENCY * 1e3:g} ms", assumptions.SOURCE)


def assumes_latency(cluster: Cluster) -> bool:
    """Whether the text of a cluster leaves out the latency of a link, which is then a default."""
    links = [cluster.link, *(one for site in cluster.sites for one in (site.link, site.uplink))]
    return bool(cluster.text) and any(one is not None and one.latency == LATENCY for one in links)


def codecs_of(protocol: StrategyProtocol, workers: int) -> list[Codec]:
    """The codecs of a protocol, each once."""
    codings = (protocol.coding_of(one, workers) for one in range(protocol.count_servers(workers)))
    found = [codec for one in codings if one is not None for codec in (one.pushes, one.answers)]
    return list(dict.fromkeys([*filter(None, found), *codecs_within(protocol)]))


def codecs_within(value: object) -> Iterator[Codec]:
    """The codecs that are fields of a strategy, or of a strategy within it."""
    if isinstance(value, Codec):
        yield value
    elif isinstance(value, Value):
        for field in fields(value):
            yield from codecs_within(getattr(value, field.name))


def coding_words(protocol: StrategyProtocol, workers: int, speeds: CodingSpeeds) -> str | None:
    """The speed of codecs, if there are any."""
    codecs = codecs_of(protocol, workers)
    if not codecs:
        return None
    if speeds.given is not None:
        return FREE if speeds.are_free else f"{speeds.given / 1e9:g} GB/s"
    found = "; ".join(f"{codec} {speeds.of(codec)}" for codec in codecs)
    return f"{found}, as on {MACHINE}"
