"""The network of a cluster with sites: hosts of a site share its uplink."""

from __future__ import annotations

import pytest

from manyhands.cluster import Cluster, Link
from manyhands.virtual.simulator.kernel import Kernel
from manyhands.virtual.simulator.member import VirtualProcess
from manyhands.virtual.simulator.network import Network

SITES = "2 sites of 3 workers, 800bit and 0s within, 80bit and 2s between"
"""100 bytes a second within a site, and 10 bytes a second and 2 s between the two."""


class Traffic:
    """Messages between hosts by number, and what became of them."""

    def __init__(self, text: str = SITES) -> None:
        self.kernel = Kernel()
        cluster = Cluster.parse(text)
        self.network = Network(self.kernel, cluster, copy_rate=1e3)
        self.members = [
            VirtualProcess(f"server-{number}", host.name)
            for number, host in enumerate(cluster.hosts)
        ]
        for member in self.members:
            member.begin()
        self.arrived: dict[str, float] = {}
        self.lost: dict[str, float] = {}

    def send(self, name: str, one: int, other: int, nbytes: int, at: float = 0.0) -> None:
        def go() -> None:
            self.network.send(
                self.members[one],
                self.members[other],
                nbytes,
                deliver=lambda: self.arrived.setdefault(name, self.kernel.now),
                lose=lambda: self.lost.setdefault(name, self.kernel.now),
            )

        self.kernel.after(at, go)

    def kill(self, number: int, at: float) -> None:
        def die() -> None:
            self.members[number].end(self.kernel.now)
            self.network.drop(self.members[number])

        self.kernel.after(at, die)

    def run(self) -> None:
        self.kernel.after(1000, self.kernel.finish)
        self.kernel.run()


@pytest.fixture
def traffic() -> Traffic:
    return Traffic()


def test_a_message_alone_takes_the_latency_and_its_size_at_the_slowest_place(
    traffic: Traffic,
) -> None:
    traffic.send("near", 0, 1, 200)
    traffic.send("far", 2, 3, 200)
    traffic.run()
    assert traffic.arrived == {"near": 2.0, "far": pytest.approx(22.0)}


def test_latencies_within_both_sites_and_between_them_add_up() -> None:
    traffic = Traffic("2 sites of 2 workers, 800bit and 1s within, 80bit and 2s between")
    traffic.send("x", 0, 2, 100)
    traffic.run()
    assert traffic.arrived == {"x": pytest.approx(1 + 2 + 1 + 10)}


def test_hosts_of_a_site_share_its_uplink_and_not_each_other_s_ports(traffic: Traffic) -> None:
    for number in range(3):
        traffic.send(f"far {number}", number, 3 + number, 100)
    traffic.send("near", 0, 1, 100)
    traffic.run()
    # The sender's port is shared with the message that waits for the uplink.
    assert traffic.arrived.pop("near") == pytest.approx(2.0)
    assert traffic.arrived == {f"far {number}": pytest.approx(32.0) for number in range(3)}


def test_hosts_of_a_site_share_its_downlink() -> None:
    traffic = Traffic("3 sites of 2 workers, 800bit and 0s within, 80bit and 2s between")
    traffic.send("x", 0, 4, 100)
    traffic.send("y", 2, 5, 100)
    traffic.run()
    assert traffic.arrived == {"x": pytest.approx(22.0), "y": pytest.approx(22.0)}


def test_the_directions_of_an_uplink_are_apart(traffic: Traffic) -> None:
    traffic.send("there", 0, 3, 100)
    traffic.send("back", 3, 0, 100)
    traffic.run()
    assert traffic.arrived == {"there": pytest.approx(12.0), "back": pytest.approx(12.0)}


def test_sites_of_one_host_have_the_uplink_alone() -> None:
    traffic = Traffic("2 sites of 4 workers, 80bit and 2s between")
    traffic.send("x", 0, 1, 100)
    traffic.run()
    assert traffic.arrived == {"x": pytest.approx(12.0)}


def test_a_pair_s_own_link_passes_no_uplink() -> None:
    declared = Cluster.parse(SITES)
    own = Cluster(
        declared.hosts, links=(("host-0", "host-3", Link(50.0, 1.0)),), sites=declared.sites
    )
    traffic = Traffic()
    traffic.network = Network(traffic.kernel, own, copy_rate=1e3)
    traffic.send("own", 0, 3, 100)
    traffic.send("other", 1, 4, 100)
    traffic.run()
    assert traffic.arrived == {"own": pytest.approx(3.0), "other": pytest.approx(12.0)}


def test_a_message_at_the_uplink_is_lost_with_its_sender_and_frees_the_uplink(
    traffic: Traffic,
) -> None:
    traffic.send("x", 0, 3, 100)
    traffic.send("y", 1, 4, 100)
    traffic.kill(0, at=4.0)  # its own port has sent it after 1 s, the uplink has 20 of 100 bytes
    traffic.run()
    assert traffic.lost == {"x": 4.0}
    # 20 bytes in 4 s beside the other, and 80 alone in 8 s. The downlink knows of the loss too.
    assert traffic.arrived == {"y": pytest.approx(14.0)}


def test_a_message_that_has_left_the_site_arrives_though_its_sender_dies(traffic: Traffic) -> None:
    traffic.send("x", 0, 3, 100)
    traffic.kill(0, at=10.5)
    traffic.run()
    assert traffic.arrived == {"x": pytest.approx(12.0)}


def test_a_message_is_lost_with_its_receiver(traffic: Traffic) -> None:
    traffic.send("x", 0, 3, 100)
    traffic.kill(3, at=5.0)
    traffic.run()
    assert traffic.lost == {"x": 5.0}
    assert traffic.arrived == {}
