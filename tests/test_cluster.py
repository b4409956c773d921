import os
import socket
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands import cluster
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


def test_local_has_a_device_for_every_gpu_and_then_a_worker_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "_gpus", lambda: 3)
    (here,) = Cluster.local().hosts
    assert here.devices == ("cuda:0", "cuda:1", "cuda:2")
    assert Cluster.local().default_workers() == 3


@pytest.mark.parametrize(
    ("nodes", "allowed", "expected"),
    [
        (("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"), None, 2),
        (("nvidia0", "nvidia1"), "1", 1),
        (("nvidia0", "nvidia1"), "", 0),
        (("nvidia0", "nvidia1"), "0,7,1", 1),
        (("nvidia0", "nvidia1"), "GPU-8932f937, GPU-2f1b", 2),
        ((), None, 0),
    ],
)
def test_gpus_are_those_of_the_driver_that_cuda_shows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nodes: tuple[str, ...],
    allowed: str | None,
    expected: int,
) -> None:
    driver, torch = tmp_path / "dev", tmp_path / "torch"
    driver.mkdir()
    for node in nodes:
        (driver / node).touch()
    (torch / "lib").mkdir(parents=True)
    installed = SimpleNamespace(origin=str(torch / "__init__.py"))
    monkeypatch.setattr(cluster, "_DRIVER", driver)
    monkeypatch.setattr(cluster, "find_spec", lambda _: installed)
    if allowed is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", allowed)
    assert cluster._gpus() == 0, "a torch without CUDA finds none"
    (torch / "lib" / "libtorch_cuda.so").touch()
    assert cluster._gpus() == expected


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
