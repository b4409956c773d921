import os
import socket
from itertools import permutations

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.cluster import Cluster, Host, Link

SLOW, FAST = Link(1e6, 0.1), Link(1e9)


def host(name: str, cores: int = 4, devices: tuple[str, ...] = ()) -> Host:
    return Host(name=name, cores=cores, memory=1 << 30, devices=devices)


def test_local_is_this_machine_with_the_cores_that_this_process_may_use() -> None:
    (here,) = Cluster.local().hosts
    assert here.cores == len(os.sched_getaffinity(0))
    assert here.name == socket.gethostname()
    assert here.memory == psutil.virtual_memory().total
    assert here.devices == ()
    assert here.address == "127.0.0.1"


def test_local_counts_only_the_cores_that_are_left_to_this_process() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert Cluster.local().cores == 1
    finally:
        os.sched_setaffinity(0, before)


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
    cluster = Cluster(hosts=hosts, link=SLOW, links=(("a", "b", FAST),))
    for first, second in permutations("abc", 2):
        expected = FAST if {first, second} == {"a", "b"} else SLOW
        assert cluster.between(first, second) is expected
    assert all(cluster.between(name, name) is None for name in "abc")


def test_without_links_there_is_none_between_hosts() -> None:
    assert Cluster(hosts=(host("a"), host("b"))).between("a", "b") is None


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 8)), min_size=1, max_size=5))
def test_workers_are_one_per_device_else_one_per_core_up_to_four(
    sizes: list[tuple[int, int]],
) -> None:
    cluster = Cluster(
        hosts=tuple(
            host(f"host{number}", cores, tuple(f"cuda:{index}" for index in range(devices)))
            for number, (cores, devices) in enumerate(sizes)
        )
    )
    cores, devices = (sum(column) for column in zip(*sizes, strict=True))
    assert cluster.cores == cores
    assert cluster.default_workers() == (devices or min(cores, 4))


def test_a_cluster_is_a_value() -> None:
    assert Cluster(hosts=(host("a"),)) == Cluster(hosts=(host("a"),))
    assert (
        len({Cluster(hosts=(host("a"),), link=FAST), Cluster(hosts=(host("a"),), link=FAST)}) == 1
    )
