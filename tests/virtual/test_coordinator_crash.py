"""A virtual coordinator dies and is restarted: workers wait for it, and nothing is lost."""

from __future__ import annotations

import pytest
from virtual_jobs import a_job

from manyhands.reports import accounting
from manyhands.virtual import CoordinatorCrash, Faults


def test_workers_wait_for_its_successor_and_every_sample_counts_once(virtually) -> None:
    job = a_job(epochs=1)
    clean = virtually(job)
    done = virtually(job, faults="coordinator_crash(at=0.35, restart=2.0)")
    kept = accounting(done.run.trace)
    assert (kept.seen, kept.repeated, kept.lost) == (200, 0, 0)
    assert done.world.versions == clean.world.versions
    assert clean.run.seconds + 1.8 <= done.run.seconds <= clean.run.seconds + 2.1
    assert done.events("fault") == [{"what": "coordinator_crash(at=0.35, restart=2.0)"}]
    (restart,) = done.events("restart")
    assert restart == {"member": "coordinator", "words": "coordinator died after 0.35 s"}


def test_a_worker_that_is_lost_meanwhile_is_replaced_afterwards(virtually) -> None:
    faults = "[coordinator_crash(at=0.3, restart=3.0), crash(worker=1, at=0.35, restart=1.0)]"
    done = virtually(a_job(epochs=1), faults=faults, detection=0.5)
    kept = accounting(done.run.trace)
    assert (kept.seen, kept.lost) == (200, 0)
    assert kept.repeated > 0
    assert done.run.status == "finished"


def test_a_coordinator_that_dies_at_every_moment_changes_no_parameter(virtually) -> None:
    job = a_job(epochs=1)
    clean = virtually(job)
    deaths = [CoordinatorCrash(at=0.05 + 0.1 * moment, restart=0.0) for moment in range(9)]
    done = virtually(job, faults=Faults(tuple(deaths)))
    assert done.run.parameters_digest == clean.run.parameters_digest
    assert done.run.seconds == pytest.approx(clean.run.seconds)


def test_a_time_limit_that_is_reached_meanwhile_holds_afterwards(virtually) -> None:
    job = a_job(epochs=1000, seconds=1.0)
    done = virtually(job, faults="coordinator_crash(at=0.5, restart=2.0)")
    assert 2.4 < done.run.seconds < 3.0


@pytest.mark.parametrize("text", ["coordinator_crash(at=-1.0)", "coordinator_crash(restart=-0.5)"])
def test_a_crash_has_times_that_exist(text) -> None:
    with pytest.raises(ValueError, match="0 or more seconds"):
        Faults.read(text)
