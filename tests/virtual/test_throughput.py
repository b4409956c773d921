"""How fast virtual runs are, in closed form."""

import pytest
from virtual_jobs import a_job

from manyhands.cluster import Cluster, Host, Link
from manyhands.protocols import Asynchronous, Hierarchical
from manyhands.reports import breakdown, throughput
from manyhands.virtual import ProcessHosts
from manyhands.virtual.worker.endpoint import HEAD

BYTES = (4 * 2 + 2) * 4
"""Of the parameters of the small job's model."""


def test_a_compute_bound_run_is_as_fast_as_its_workers(virtually) -> None:
    job = a_job(size=1000, global_batch=10, epochs=1)
    done = virtually(job, workers=10, copy_rate=1e15)
    # 10 workers, a sample each every 0.1 s.
    assert throughput(done.run.trace).rate == pytest.approx(100, rel=1e-6)
    assert breakdown(done.run.trace).overall.compute == pytest.approx(1, abs=1e-6)


def test_a_round_trip_is_two_latencies_and_two_transfers(virtually) -> None:
    job = a_job(size=50, global_batch=1, epochs=1)
    bandwidth, latency = 2e3, 0.03
    done = virtually(job, places=ProcessHosts.host_each(1, 1, Link(bandwidth, latency)))
    pull = 2 * latency + (2 * HEAD + BYTES) / bandwidth
    each = 0.1 + 2 * latency + 2 * (HEAD + BYTES) / bandwidth
    assert throughput(done.run.trace).start_up == pytest.approx(pull, rel=1e-9)
    assert done.run.seconds == pytest.approx(50 * each, rel=1e-9)


def mean_value_analysis(workers: int, alone: float, each: float) -> float:
    """Updates per second of workers that spend `alone` seconds by themselves, then share two ports.

    Exact for any distribution of times, because the ports are shared equally (Reiser and
    Lavenberg, 1980): one more worker finds what one less would leave there.
    """
    rate = queue = 0.0
    for number in range(1, workers + 1):
        at_port = each * (1 + queue)
        rate = number / (alone + 2 * at_port)
        queue = rate * at_port
    return rate


@pytest.mark.parametrize(
    ("workers", "bandwidth"),
    [
        (4, 2e3),
        (40, 1e4),
        *(
            pytest.param(*given, marks=pytest.mark.slow)
            for given in ((4, 1e5), (4, 1e3), (40, 1e5), (40, 2e4))
        ),
    ],
)
@pytest.mark.parametrize("seconds", ["exponential(0.1)", "lognormal(0.1, cv=0.3)"])
def test_the_ports_of_a_server_are_shared_by_its_workers(
    virtually, workers: int, bandwidth: float, seconds: str
) -> None:
    job = a_job(size=4000, global_batch=workers, epochs=1)
    places = ProcessHosts.host_each(workers, 1, Link(bandwidth, 1e-3))
    run = virtually(job, places=places, seconds=seconds).run
    each = (HEAD + BYTES) / bandwidth
    expected = mean_value_analysis(workers, 0.1 + 2e-3, each)
    assert throughput(run.trace).rate == pytest.approx(expected, rel=0.04)


def test_workers_in_step_use_one_direction_of_a_port_at_a_time(virtually) -> None:
    workers, updates, bandwidth = 40, 2000, 2.5e3
    job = a_job(size=updates, global_batch=workers, epochs=1)
    done = virtually(job, places=ProcessHosts.host_each(workers, 1, Link(bandwidth, 1e-3)))
    there = workers * (HEAD + BYTES) / bandwidth
    pull = 2e-3 + workers * HEAD / bandwidth + there
    rounds = updates / workers * (0.1 + 2e-3 + 2 * there)
    assert throughput(done.run.trace).start_up == pytest.approx(pull, rel=1e-6)
    assert done.run.seconds == pytest.approx(rounds, rel=1e-6)
    assert breakdown(done.run.trace).overall.communication > 0.9


def test_two_servers_share_the_traffic_of_one(virtually) -> None:
    workers, updates, bandwidth = 20, 1000, 2e3
    job = a_job(size=updates, global_batch=workers, epochs=1)
    # Everything fits into one cut of 64 bytes, so the two parts are unequal: 32 and 8 bytes.
    for servers, nbytes in ((1, BYTES), (2, 32)):
        places = ProcessHosts.host_each(workers, servers, Link(bandwidth, 1e-3))
        done = virtually(job, Asynchronous(servers=servers), places=places)
        there = workers * (HEAD + nbytes) / bandwidth
        rounds = updates / workers * (0.1 + 2e-3 + 2 * there)
        assert done.run.seconds == pytest.approx(rounds, rel=0.01)


@pytest.mark.parametrize(("workers", "cores"), [(6, 2), (5, 1), (3, 3), (7, 4)])
def test_workers_share_the_cores_of_their_host(virtually, workers: int, cores: int) -> None:
    job = a_job(size=420, global_batch=workers, epochs=1)
    done = virtually(job, places=ProcessHosts.one_host(workers, 1, cores), copy_rate=1e15)
    assert done.run.seconds == pytest.approx(420 * 0.1 / cores, rel=0.01)
    shares = breakdown(done.run.trace).overall
    assert shares.compute == pytest.approx(cores / workers, rel=0.02)
    assert shares.wait == pytest.approx(1 - cores / workers, abs=0.02)


def test_a_server_needs_time_for_an_update_if_it_is_given(virtually) -> None:
    job = a_job(size=300, global_batch=10, epochs=1)
    done = virtually(job, workers=10, service=0.05, copy_rate=1e15)
    # One after the other, and faster than ten workers bring them.
    assert done.run.seconds == pytest.approx(300 * 0.05, rel=0.02)


def test_a_message_within_a_host_takes_its_handover(virtually) -> None:
    job = a_job(size=50, global_batch=1, epochs=1)
    done = virtually(job, workers=1, handover=0.03, copy_rate=1e15)
    assert done.run.seconds == pytest.approx(50 * (0.1 + 0.06), rel=1e-6)


def test_a_server_competes_for_the_cores_of_its_host(virtually) -> None:
    job = a_job(size=100, global_batch=1, epochs=1)
    done = virtually(job, places=ProcessHosts.one_host(3, 1, cores=1), service=0.05, copy_rate=1e15)
    assert done.run.seconds == pytest.approx(100 * (0.1 + 0.05), rel=0.02)


def test_a_cluster_says_where_everybody_is(virtually) -> None:
    hosts = (Host("a", 2, 0), Host("b", 2, 0))
    link, slow = Link(1e6, 0.0), Link(1e3, 0.0)
    spread = ProcessHosts.spread(Cluster(hosts, link), 5, 3)
    assert (spread.workers, spread.servers) == (("a", "a", "a", "b", "b"), ("a", "b", "a"))
    islands = Hierarchical(islands=2)
    spread = ProcessHosts.spread(Cluster(hosts, link), 4, 3, islands.groups(4))
    assert (spread.workers, spread.servers) == (("a", "a", "b", "b"), ("a", "b", "a"))
    job = a_job(size=60, global_batch=1, epochs=1)
    near = virtually(job, places=ProcessHosts.spread(Cluster(hosts, link), 1, 1), copy_rate=1e15)
    assert near.run.seconds == pytest.approx(6, rel=1e-6), "the worker and the server share a host"
    links = (("a", "b", slow),)
    far = ProcessHosts(Cluster(hosts, link, links), ("b",), ("a",))
    each = 0.1 + 2 * (HEAD + BYTES) / 1e3
    assert virtually(job, places=far).run.seconds == pytest.approx(60 * each, rel=0.01)


def test_hosts_without_a_link_are_named(virtually) -> None:
    hosts = (Host("a", 1, 0), Host("b", 1, 0))
    with pytest.raises(ValueError, match="no link between b and a"):
        virtually(places=ProcessHosts(Cluster(hosts), ("b",), ("a",)))
