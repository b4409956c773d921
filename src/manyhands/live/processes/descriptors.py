"""Limits on open files: what a run needs, and raising the soft limit to the hard one."""

from __future__ import annotations

import resource

_REST = 256
"""What a process has open besides its connections: files, libraries, ZeroMQ's own."""


_ENOUGH = 1 << 20
"""Some systems allow a billion, and some programs go through all that are allowed."""


def raise_descriptors() -> int:
    """Raise this process's soft limit on open files to its hard limit; the limit from then on.

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
    """Open files that the process with the most connections needs.

    That is the coordinator, with two connections of every worker and one of every server; or, under
    a collective strategy, a worker, with a connection to every other and a duplicate of it.
    """
    return 2 * workers + servers + _REST


def check_descriptors(workers: int, servers: int) -> None:
    """Refuse a run for which this system allows too few open files.

    Raises:
        ValueError: it does.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = needed_descriptors(workers, servers)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(
            f"{workers} workers need {needed} open files in one process, and the hard limit is "
            f"{hard} (ulimit -Hn): raise it, or use at most "
            f"{max(0, (hard - servers - _REST) // 2)} workers"
        )
