"""The network of a declared cluster on one machine: a switch per site, and shaped uplinks.

    (host-0) ──tbf── ┐                                ┌ ──tbf── (host-2)
    (host-1) ──tbf── ┴ site-0 ──tbf── between ──tbf── site-1 ┴ ──tbf── (host-3)

Hosts are network namespaces, as in `manyhands.lab.networks.namespaces`. The uplink of a site is a
pair of interfaces between its switch and the switch between the sites, shaped in both directions,
so that all hosts of a site share it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from manyhands.cluster.text import LATENCY
from manyhands.lab.networks.namespaces import (
    MOST,
    connect,
    execute,
    first_namespace,
    namespace,
    shaped,
    switch,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.cluster import Cluster, Link
    from manyhands.lab.networks.namespaces import NamespaceHost

_SEGMENT = 1448
"""Bytes of data in a TCP segment on Ethernet."""
_LARGEST_WINDOW = 4 << 20
"""Bytes of the sockets' buffers, beyond which a larger window has no effect."""
_QUEUE = 0.1


def check_live(cluster: Cluster) -> None:
    """Raise ValueError, naming the fix, if the cluster cannot be made of namespaces."""
    if not cluster.text:
        raise ValueError(
            "a live comparison needs a cluster that has a text, as Cluster.parse('2 hosts of 4 "
            "workers, 1gbit') has; compare others with virtual=True"
        )
    if any(host.cores != host.workers for host in cluster.hosts_for_workers):
        raise ValueError(
            "cores are those of this machine in a live comparison: leave them out of the cluster, "
            "or compare virtually"
        )
    if len(cluster.hosts) > MOST:
        raise ValueError(
            f"a network on one machine has at most {MOST} hosts, got {len(cluster.hosts)}: "
            "compare virtually"
        )


def network_words(cluster: Cluster) -> str:
    """Description of the network, for the results; empty for one host."""
    if len(cluster.hosts) == 1:
        return ""
    return f"{cluster}; each host is a network namespace, with the coordinator on the first"


@contextlib.contextmanager
def cluster_network(cluster: Cluster) -> Iterator[list[NamespaceHost]]:
    """The network of a cluster; yields its hosts in order.

    Raises:
        NotPermitted: this machine does not allow network namespaces.
        ValueError: the cluster cannot be made of namespaces.
    """
    check_live(cluster)
    with contextlib.ExitStack() as stack:
        bridge = stack.enter_context(first_namespace())
        links: dict[str, str] = {}
        places = []
        for number, host in enumerate(cluster.hosts):
            place = stack.enter_context(namespace(f"10.77.0.{1 + number}", bridge.user))
            site = cluster.site_of(host.name)
            own = cluster.link if site is None else site.link or site.uplink
            if own is None:
                raise ValueError(f"{host.name} has no link: {cluster}")
            links[host.name] = f"link{number}"
            places.append(connect(bridge, links[host.name], place, own.bandwidth))
        for one in _switches(cluster, links, bridge):
            stack.enter_context(one)
        _widen(cluster, places)
        yield places


def _switches(
    cluster: Cluster, links: dict[str, str], bridge: NamespaceHost
) -> Iterator[contextlib.AbstractContextManager[None]]:
    if not cluster.sites:
        yield switch(bridge, "between", list(links.values()), _added(cluster.link))
        return
    downlinks = []
    for number, site in enumerate(cluster.sites):
        own = [links[name] for name in site.hosts]
        if site.uplink is not None:
            up, down = f"up{number}", f"down{number}"
            _make_uplink(bridge, up, down, site.uplink)
            own.append(up)
            downlinks.append(down)
        yield switch(bridge, f"site{number}", own, _added(site.link))
    if downlinks:
        yield switch(bridge, "between", downlinks, _added(cluster.sites[0].uplink))


def _make_uplink(bridge: NamespaceHost, up: str, down: str, link: Link) -> None:
    # Whole windows of several hosts may wait at the uplink.
    shape = shaped(link.bandwidth, max(_QUEUE, 4 * link.latency))
    execute(
        bridge,
        f"ip link add {up} type veth peer name {down}",
        f"ip link set {up} up",
        f"ip link set {down} up",
        f"tc qdisc add dev {up} {shape}",
        f"tc qdisc add dev {down} {shape}",
    )


def _added(link: Link | None) -> float:
    """Seconds that a switch adds: none up to the default, which is about the machine's own."""
    return 0.0 if link is None or link.latency <= LATENCY else link.latency


def _widen(cluster: Cluster, places: list[NamespaceHost]) -> None:
    """Let connections begin with a window that fills the way between the sites.

    By default TCP begins with 10 segments, also after a pause, and doubles them in each round trip:
    on a long way every exchange would take several round trips more than its bytes do.
    """
    first, last = cluster.hosts[0].name, cluster.hosts[-1].name
    way = cluster.between(first, last)
    if way is None or not _added(way):
        return
    window = min(_LARGEST_WINDOW, way.bandwidth * 2 * way.latency)
    segments = max(10, round(window / _SEGMENT))
    for place in places:
        execute(
            place,
            f"ip route change 10.77.0.0/24 dev eth0 proto kernel scope link src {place.address} "
            f"initcwnd {segments} initrwnd {segments}",
        )
