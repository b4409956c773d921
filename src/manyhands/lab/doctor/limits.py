"""Checks of limits on processes: open files, processes and threads, file size, address space."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.lab.doctor.finding import Finding
from manyhands.live.processes.descriptors import check_descriptors, needed_descriptors
from manyhands.live.processes.fork_server import environment
from manyhands.reports.formatting import size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.lab.doctor.finding import ExaminedRun, Surroundings

_THREADS = 12
"""Threads assumed for a worker or server besides those of OpenMP: heartbeat, ZeroMQ, autograd,
gloo, journal. 6 to 8 were measured under allreduce and asynchronous, OpenMP's one included."""
_OTHERS = 3
"""Processes of a host besides workers and servers: agent, coordinator, fork server."""
_FILE = 256 << 20
"""Bytes that any file of a run should be allowed to have: traces and logs."""
_ADDRESSES = 8 << 30
"""Bytes of addresses of a process with torch, most of which take no memory."""


def check_open_files(plan: ExaminedRun, _around: Surroundings) -> Iterator[Finding]:
    """Open files of one process, against the hard limit: the soft one is raised by a run."""
    servers = plan.needs.servers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        check_descriptors(plan.workers, servers)
    except ValueError as error:
        advice = "raise it in /etc/security/limits.conf, or with LimitNOFILE= or --ulimit nofile="
        yield Finding("open files", "error", str(error), advice)
        return
    limit = "no limit" if hard == resource.RLIM_INFINITY else f"a hard limit of {hard}"
    needed = needed_descriptors(plan.workers, servers)
    raised = f", to which the soft limit of {soft} is raised" if soft < needed else ""
    yield Finding("open files", "ok", f"{needed} are needed, {limit}{raised}")


def check_processes(plan: ExaminedRun, around: Surroundings) -> Iterator[Finding]:
    """Processes and threads that may still be started, against what the run starts."""
    needed = needed_threads(plan)
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:
        used = _threads_of_user()
        words = f"{soft} are allowed (ulimit -u), {used} are in use, the run starts up to {needed}"
        if soft - used < needed:
            advice = "raise the limit (ulimit -u), end other programs, or use fewer workers"
            yield Finding("processes and threads", "error", words, advice)
        else:
            yield Finding("processes and threads", "ok", words)
    left = around.groups.processes_left()
    if left is not None:
        words = f"the control group allows {left} more, the run starts up to {needed}"
        if left < needed:
            advice = "raise the container's limit (docker run --pids-limit), or use fewer workers"
            yield Finding("processes of the control group", "error", words, advice)
        else:
            yield Finding("processes of the control group", "ok", words)
    elif os.geteuid() == 0 or soft == resource.RLIM_INFINITY:
        yield Finding("processes and threads", "ok", f"no limit, the run starts up to {needed}")


def needed_threads(plan: ExaminedRun) -> int:
    """Processes and threads that a run starts on this host, at most."""
    own = int(environment(plan.cores, plan.here)["OMP_NUM_THREADS"].partition(",")[0])
    loaders = 0 if plan.job is None else plan.job.num_workers
    members = plan.here + plan.needs.server_processes
    return members * (_THREADS + own) + plan.here * 2 * loaders + _OTHERS * _THREADS


def check_file_size(plan: ExaminedRun, _around: Surroundings) -> Iterator[Finding]:
    """The largest file that a process may write, against the model's file."""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft == resource.RLIM_INFINITY:
        yield Finding("file size", "ok", "no limit")
        return
    needed = plan.model_bytes + (1 << 20)
    words = f"a file may have {size(soft)} (ulimit -f)"
    if soft < needed:
        words += f", the model's has {size(needed)}" if plan.job else ", which a trace exceeds"
        yield Finding("file size", "error", words, "raise the limit: ulimit -f unlimited")
    elif soft < _FILE:
        yield Finding("file size", "warning", words, "raise the limit: ulimit -f unlimited")
    else:
        yield Finding("file size", "ok", words)


def check_address_space(_plan: ExaminedRun, _around: Surroundings) -> Iterator[Finding]:
    """Limits on a process's addresses and on its time on the processor."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY and soft < _ADDRESSES:
        yield Finding(
            "address space",
            "error" if soft < _ADDRESSES // 4 else "warning",
            f"a process may have {size(soft)} of addresses (ulimit -v)",
            "remove the limit (ulimit -v unlimited): torch reserves more than it uses; limit the "
            "memory of a control group instead",
        )
    else:
        yield Finding("address space", "ok", "no limit that torch would reach")
    seconds, _ = resource.getrlimit(resource.RLIMIT_CPU)
    if seconds != resource.RLIM_INFINITY:
        words = f"a process is ended after {seconds} s on the processor (ulimit -t)"
        yield Finding("processor time", "warning", words, "remove the limit: ulimit -t unlimited")


def _threads_of_user() -> int:
    """Threads of all processes of this user."""
    user, found = os.getuid(), 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == user:
                found += sum(1 for _ in (process / "task").iterdir())
        except OSError:  # it has ended, or is another user's
            continue
    return found
