"""Limits on open files: the number that a run needs, and raising the soft limit to the hard one."""

from __future__ import annotations

import resource

from manyhands.units import counted

_REST = 256
"""Open files of a process besides its connections: log files, libraries, ZeroMQ's own."""


_ENOUGH = 1 << 20
"""Largest limit that is set: where a billion are allowed, some programs loop over all of them."""


def raise_descriptors() -> int:
    """Raise this process's soft limit on open files to its hard limit; return the new limit.

    The usual soft limit of 1,024 exists for programs that call `select`; the hard limit is what the
    system allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def needed_descriptors(workers: int, servers: int) -> int:
    """Number of open files that the process with the most connections needs.

    That is the coordinator, with two connections per worker and one per server; or, under a
    strategy of collectives, a worker, with a connection to every other one and a duplicate of it.
    """
    return 2 * workers + servers + _REST


def check_descriptors(workers: int, servers: int) -> None:
    """Check that the system allows as many open files as a run needs.

    Raises:
        ValueError: it does not.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = needed_descriptors(workers, servers)
    if hard != resource.RLIM_INFINITY and hard < needed:
        most = (hard - servers - _REST) // 2
        raise ValueError(
            f"{workers} workers need {needed} open files in one process, but the hard limit is "
            f"{hard} (ulimit -Hn): raise it"
            + (f", or use at most {counted(most, 'worker')}" if most > 0 else "")
        )
