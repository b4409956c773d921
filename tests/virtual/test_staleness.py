"""With one push per pull the staleness of N workers averages N − 1, whatever their speeds."""

import pytest
from virtual_jobs import a_job

from manyhands.cluster import Link
from manyhands.protocols import Asynchronous
from manyhands.reports import staleness
from manyhands.virtual import ProcessHosts


@pytest.mark.parametrize("workers", [1, 2, 5, 16])
def test_equal_workers_are_n_minus_1_stale_after_the_start(virtually, workers: int) -> None:
    job = a_job(size=320, global_batch=workers, epochs=1)
    done = virtually(job, workers=workers)
    (server,) = [p for p in done.run.trace.processes if p.header.role == "server"]
    # All begin with version 0: the first round finds 0, 1, …, N − 1 updates before it.
    expected = dict.fromkeys(range(workers - 1), 1) | {workers - 1: 320 - workers + 1}
    assert server.staleness == expected
    by_sender = server.staleness_by_sender
    assert sum(sum(counts.values()) for counts in by_sender.values()) == 320
    assert by_sender.keys() == {f"worker-{rank}" for rank in range(workers)}


@pytest.mark.parametrize(
    "seconds",
    [
        "normal(0.1, cv=0.3)",
        "lognormal(0.1, cv=1.0)",
        "exponential(0.1)",
        "gamma(0.1, cv=0.5)",
        "constant(0.1, slow=[slow(0, 10.0)])",
    ],
)
@pytest.mark.parametrize("servers", [1, 2])
def test_its_mean_is_n_minus_1_for_any_times(virtually, seconds: str, servers: int) -> None:
    workers = 8
    job = a_job(size=800, global_batch=workers, epochs=1)
    places = ProcessHosts.host_each(workers, servers, Link(1e6, 1e-3))
    done = virtually(job, Asynchronous(servers=servers), places=places, seconds=seconds)
    spread = staleness(done.run.trace)
    assert spread is not None
    assert spread.updates == 800 * servers
    # What is lost to the sum at the start and at the end is at most N² per server.
    assert workers - 1 - workers**2 / 800 <= spread.mean <= workers - 1


def test_a_straggler_is_staler_and_its_peers_are_not(virtually) -> None:
    job = a_job(size=800, global_batch=4, epochs=1)
    done = virtually(job, workers=4, seconds="constant(0.1, slow=[slow(rank=2, factor=10.0)])")
    spread = staleness(done.run.trace)
    assert spread is not None
    assert spread.most == pytest.approx(3 * 10, abs=1), "three others, ten times as fast"
    (server,) = [p for p in done.run.trace.processes if p.header.role == "server"]
    assert server.staleness[2] > 0.6 * 800, "most meet the two others, and the slow one rarely"
