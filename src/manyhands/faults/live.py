"""Which faults a live run can have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.faults.fault import (
    Cut,
    CutHost,
    Isolate,
    Lose,
    Pause,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.faults.schedule import Faults


def check_live(
    faults: Faults, workers: int, servers: int, hosts: Sequence[str], *, network: bool
) -> None:
    """Raise ValueError, naming the fix, if a live run cannot have these faults.

    Args:
        faults: the schedule.
        workers: number of workers.
        servers: number of servers that are processes of their own.
        hosts: the names of all hosts.
        network: whether Manyhands made the network between the hosts.
    """
    for fault in faults.faults:
        match fault:
            case Cut() | Lose() | Isolate():
                raise ValueError(
                    f"{fault} is for virtual runs: a real link belongs to a host, and not to a "
                    "process. Use 'cut host NAME from 60 s to 70 s', in a run under --cluster or "
                    "--network"
                )
            case CutHost() if not network:
                raise ValueError(
                    f"{fault} needs a network that Manyhands made: use --cluster '2 hosts of 2 "
                    "workers, 1gbit' or --network 1gbit. The network between your own machines is "
                    "not touched: stop the process `manyhands join` of a host instead"
                )
            case CutHost(host=host) if host not in hosts:
                raise ValueError(f"{fault} names {host}, and the run has {', '.join(hosts)}")
            case Pause(seconds=None) if workers == 1:
                raise ValueError(f"{fault} stops the only worker for ever: set seconds")
    faults.check(workers, servers)
