from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.cluster import Cluster, Host, Link, Site

SLOW, FAST = Link(1e6, 0.1), Link(1e9)


def host(name: str, cores: int = 4, devices: tuple[str, ...] = ()) -> Host:
    return Host(name=name, cores=cores, memory=1 << 30, devices=devices)


@pytest.mark.parametrize("cores", [0, -1])
def test_a_host_without_cores_is_refused_by_name(cores: int) -> None:
    with pytest.raises(ValueError, match=f"host a needs at least 1 core, not {cores}"):
        host("a", cores)


def test_a_cluster_without_hosts_is_refused() -> None:
    with pytest.raises(ValueError, match="a cluster needs at least one host"):
        Cluster(hosts=())


def test_two_hosts_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two hosts have one name: a, b, a"):
        Cluster(hosts=(host("a"), host("b"), host("a")))


@pytest.mark.parametrize("ends", [("a", "x"), ("x", "a")])
def test_a_link_to_an_unknown_host_is_refused_by_name(ends: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="a link names host 'x', which the cluster lacks"):
        Cluster(hosts=(host("a"), host("b")), links=((*ends, FAST),))


def test_pairs_have_their_own_link_in_both_directions_and_others_the_common_one() -> None:
    hosts = (host("a"), host("b"), host("c"))
    made = Cluster(hosts=hosts, link=SLOW, links=(("a", "b", FAST),))
    for first, second in permutations("abc", 2):
        expected = FAST if {first, second} == {"a", "b"} else SLOW
        assert made.between(first, second) is expected
    assert all(made.between(name, name) is None for name in "abc")


def test_without_links_there_is_none_between_hosts() -> None:
    assert Cluster(hosts=(host("a"), host("b"))).between("a", "b") is None


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 8)), min_size=1, max_size=8))
def test_workers_are_one_per_device_else_one_per_core_up_to_four_or_one_per_host(
    sizes: list[tuple[int, int]],
) -> None:
    made = Cluster(
        hosts=tuple(
            host(f"host{number}", cores, tuple(f"cuda:{index}" for index in range(devices)))
            for number, (cores, devices) in enumerate(sizes)
        )
    )
    cores, devices = (sum(column) for column in zip(*sizes, strict=True))
    assert made.cores == cores
    assert made.default_workers() == (devices or min(cores, max(4, len(sizes))))


def test_a_cluster_is_a_value() -> None:
    assert Cluster(hosts=(host("a"),)) == Cluster(hosts=(host("a"),))
    assert (
        len({Cluster(hosts=(host("a"),), link=FAST), Cluster(hosts=(host("a"),), link=FAST)}) == 1
    )


SITES = "2 sites of 2 hosts of 3 workers, 1gbit and 1ms within, 100mbit and 40ms between"


def test_the_way_between_sites_has_the_least_bandwidth_and_all_latencies() -> None:
    made = Cluster.parse(SITES)
    assert made.between("host-0", "host-1") == Link(125e6, 0.001)
    assert made.between("host-0", "host-2") == Link(12.5e6, pytest.approx(0.042))
    assert made.between("host-3", "host-1") == Link(12.5e6, pytest.approx(0.042))
    near = replace(made.sites[1], uplink=Link(1e6, 0.1))
    other = replace(made, sites=(made.sites[0], near))
    assert other.between("host-0", "host-2") == Link(1e6, pytest.approx(0.102))
    own = replace(made, links=(("host-0", "host-2", FAST),))
    assert own.between("host-2", "host-0") is FAST


def test_workers_are_on_hosts_in_the_order_of_ranks() -> None:
    made = Cluster.parse(SITES)
    assert made.workers == made.default_workers() == 12
    assert made.worker_hosts(12) == tuple(f"host-{rank // 3}" for rank in range(12))
    assert [site.hosts for site in made.sites] == [("host-0", "host-1"), ("host-2", "host-3")]
    with pytest.raises(ValueError, match="workers is 8, but the cluster has 12: omit one"):
        made.worker_hosts(8)
    undivided = Cluster(tuple(host(name) for name in "ab"), SLOW)
    assert undivided.worker_hosts(5) == ("a", "a", "a", "b", "b")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["host-0", "host-1", "host-2"]),
        (", servers at host 0", ["host-0"] * 3),
        (", servers at site 1", ["host-2"] * 3),
        (", servers at host 3", ["host-3"] * 3),
        (", servers at hosts 1 and 3", ["host-1", "host-3", "host-1"]),
        (", servers in turn", ["host-0", "host-1", "host-2"]),
        (", servers apart", ["servers-0"] * 3),
        (", servers on 2 hosts apart", ["servers-0", "servers-1", "servers-0"]),
    ],
)
def test_servers_are_on_all_hosts_in_turn_or_where_the_text_says(
    text: str, expected: list[str]
) -> None:
    made = Cluster.parse(SITES + text)
    assert list(made.server_hosts(12, 3)) == expected
    islands = [(range(6), range(1)), (range(6, 12), range(1, 2)), (range(0), range(2, 3))]
    assert list(made.server_hosts(12, 3, islands)) == ["host-0", "host-2", expected[0]]
    assert made.server_hosts(12, 1) == tuple(expected[:1])


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (SITES, (6, 6)),
        ("3 sites of 4 workers, 100mbit between", (4, 4, 4)),
        ("2 hosts of 4 workers, 1gbit", (4, 4)),
        ("8 workers, 1gbit", ()),
        ("8 workers", ()),
        ("1 site of 2 hosts of 4 workers, 1gbit within", ()),
    ],
)
def test_islands_are_the_sites_or_else_the_hosts_of_several_workers(
    text: str, sizes: tuple[int, ...]
) -> None:
    assert Cluster.parse(text).islands() == sizes


def test_a_cluster_that_does_not_say_where_workers_are_has_no_islands() -> None:
    assert Cluster(tuple(host(name) for name in "abc"), SLOW).islands() == ()


@pytest.mark.parametrize(
    ("sites", "why"),
    [
        ((Site("x", ("a",)),), "every host must be in one site"),
        ((Site("x", ("b", "a"), FAST),), "hosts be listed site by site"),
        ((Site("x", ("a",), None, SLOW), Site("x", ("b",), None, SLOW)), "two sites have one name"),
        ((Site("x", ("a", "b")),), "site x has several hosts: set its link"),
        ((Site("x", ("a",)), Site("y", ("b",), None, SLOW)), "site x has no link to the other"),
    ],
)
def test_sites_that_do_not_fit_are_refused(sites: tuple[Site, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Cluster((host("a"), host("b")), sites=sites)


def test_places_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="servers are on host 'c', which the cluster lacks"):
        Cluster((host("a"), host("b")), FAST, servers=("c",))
    with pytest.raises(ValueError, match="some hosts have a number of workers and others do not"):
        Cluster((replace(host("a"), workers=2), host("b")), FAST)
    with pytest.raises(ValueError, match="host a needs at least 0 workers, not -1"):
        replace(host("a"), workers=-1)
    with pytest.raises(ValueError, match="no host has workers: give one of them at least 1"):
        Cluster((replace(host("a"), workers=0),))


def test_a_host_of_servers_alone_has_no_workers_and_all_servers() -> None:
    hosts = (replace(host("s"), workers=0), host("a"), host("b"))
    made = Cluster(hosts, SLOW)
    assert made.worker_hosts(5) == ("a", "a", "a", "b", "b")
    assert made.server_hosts(5, 3) == ("s", "s", "s")
    assert made.workers is None
    assert made.default_workers() == 4
    assert Cluster(hosts, SLOW, servers=("s", "a", "b")).server_hosts(5, 3) == ("s", "a", "b")


TEXTS = [
    "4 hosts of 2 workers, 1gbit",
    "8 workers, 1gbit, servers in turn",
    "8 workers, 1gbit, servers apart",
    "8 workers, 1gbit, servers on 3 hosts apart",
    "4 hosts of 2 workers, 1gbit, servers at host 0",
    "4 hosts of 2 workers, 1gbit, servers at hosts 3 and 1",
    SITES,
    SITES + ", servers apart",
    SITES + ", servers at site 1",
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_first_workers_have_their_servers_where_they_were_declared(text: str) -> None:
    made = Cluster.parse(text)
    total = made.workers
    assert total is not None
    assert made.first(total) == made
    declared = "servers a" in text or "servers on" in text
    for count in range(1, total):
        part = made.first(count)
        assert part.workers == count
        assert part.worker_hosts(count) == made.worker_hosts(total)[:count]
        if declared:
            assert part.server_hosts(count, 4) == made.server_hosts(total, 4)
        else:
            on = dict.fromkeys(part.worker_hosts(count))
            assert {*part.server_hosts(count, len(on))} == {*on}
        assert part.first(1).hosts_for_servers == made.first(1).hosts_for_servers
