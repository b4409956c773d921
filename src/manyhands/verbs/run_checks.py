"""Checks of a live run before its start: faults and measures that it can have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.faults.live import check_live
from manyhands.live.worker import torchrun

if TYPE_CHECKING:
    from manyhands.faults import Faults
    from manyhands.job import Job
    from manyhands.live.hosts.host_list import Hosts
    from manyhands.strategies import Strategy
    from manyhands.verbs.command import Command


def check_faults(
    faults: Faults, strategy: Strategy, workers: int, hosts: Hosts | None, command: Command
) -> None:
    """Raise ValueError, naming the fix, if the run cannot have these faults."""
    if not faults:
        return
    if torchrun.is_torchrun():
        raise ValueError("under torchrun its processes are the workers: leave out faults")
    names = hosts.names if hosts else ("this host",)
    servers = strategy.needs(workers).server_processes
    check_live(faults, workers, servers, names, network=command.network is not None)


def check_measures(job: Job, strategy: Strategy) -> None:
    """Raise ValueError, naming the fix, if the job's measures cannot be recorded live."""
    if "spread" in job.measures:
        raise ValueError(
            "spread is the distance between all replicas at one moment, which is known in a "
            "simulation only: use manyhands simulate, or leave it out of the measures"
        )
    if "gradient_norm" in job.measures and not strategy.gradient_norms:
        raise ValueError(
            f"under {strategy} no worker has the whole gradient: leave gradient_norm out of the "
            "measures, or use single(), allreduce() or a strategy with servers"
        )
