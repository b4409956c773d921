"""Runs on the virtual cluster."""

from collections.abc import Callable
from pathlib import Path

import pytest
from virtual_jobs import Done, a_job

from manyhands.job import Job
from manyhands.protocols import Asynchronous, StrategyProtocol
from manyhands.reports import Run
from manyhands.virtual import Conditions, Faults, ProcessHosts, simulate_job, times


@pytest.fixture
def virtually(tmp_path: Path) -> Callable[..., Done]:
    """Run a job on a virtual cluster."""
    made = 0

    def run(
        job: Job | None = None,
        protocol: StrategyProtocol | None = None,
        *,
        workers: int = 4,
        places: ProcessHosts | None = None,
        seconds: str = "constant(0.1)",
        faults: str | Faults = "[]",
        **conditions: float,
    ) -> Done:
        nonlocal made
        made += 1
        protocol = protocol or Asynchronous()
        servers = protocol.needs(workers).server_processes
        places = places or ProcessHosts.one_host(workers, servers)
        folder = tmp_path / f"run-{made}"
        world = simulate_job(
            job or a_job(),
            protocol,
            places,
            Conditions(times(seconds), **conditions),
            folder,
            faults=Faults.read(faults),
        )
        return Done(Run(folder), world)

    return run
