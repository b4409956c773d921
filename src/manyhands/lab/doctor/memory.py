"""Checks of memory: what workers need, swap space, shared memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.lab.doctor.finding import Finding
from manyhands.live.agent.memory_check import (
    AFRESH,
    FORKED,
    MemoryEstimate,
    estimate,
)
from manyhands.live.devices import devices
from manyhands.live.processes.available_memory import available, memory_facts
from manyhands.live.processes.fork_server import can_fork
from manyhands.reports.formatting import percent, plural, size
from manyhands.transport.shared.memory import reserve
from manyhands.verbs.server_hosts import servers_by_default

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.lab.doctor.finding import ExaminedRun, Surroundings

SHARED = Path("/dev/shm")  # noqa: S108 - the name is that of the system
_SMALL = 64 << 20
"""Bytes of /dev/shm that a container has by default."""
_SWAPPED = 0.25
"""Fraction of the swap space in use above which programs are likely to wait for it."""


def check_memory(plan: ExaminedRun, around: Surroundings) -> Iterator[Finding]:
    """Memory that is available, against what the processes of this host need at least."""
    forks = can_fork()
    if plan.job is None:
        process = FORKED if forks else AFRESH
        servers = plan.needs.server_processes
        need = MemoryEstimate(plan.here, servers, process, data=0, model=0, shared=0)
    else:
        about = (plan.job, plan.strategy, plan.workers, plan.here, devices(plan.here))
        places = servers_by_default(None, plan.hosts, plan.strategy, plan.workers)
        serving = places.count(plan.hosts.names[0]) if plan.hosts and places else None
        need = estimate(*about, forks=forks, serving=serving)
    memory, swap = available(around.groups)
    left = around.groups.memory_left()
    if left is not None and left <= memory:
        group = f"the control group of this process leaves {size(left)}"
        advice = "raise the memory limit of the container, or use fewer workers"
    else:
        group, advice = "", "end other programs, use fewer workers, or use more hosts"
    try:
        near = need.check(memory, swap)
    except ValueError as error:
        yield Finding("memory", "error", _joined(str(error), group), advice)
        return
    if near:
        yield Finding("memory", "warning", _joined(near, group), advice)
        return
    unknown = "" if plan.job else ", the job's own not counted"
    words = (
        f"{size(memory)} are available, {plan.here} worker{plural(plan.here)} need at least "
        f"{size(need.total)}{unknown}"
    )
    yield Finding("memory", "ok", _joined(words, group))


def check_swap(_plan: ExaminedRun, _around: Surroundings) -> Iterator[Finding]:
    """Swap space in use: a worker whose pages are there is slower than the others."""
    facts = memory_facts()
    total = facts.get("SwapTotal", 0)
    used = total - facts.get("SwapFree", 0)
    if used and used > _SWAPPED * total:
        yield Finding(
            "swap",
            "warning",
            f"{size(used)} of {size(total)} are in use ({percent(used / total)})",
            "end other programs: a worker whose memory is on the disk delays the others",
        )
    elif total:
        yield Finding("swap", "ok", f"{size(used)} of {size(total)} are in use")
    else:
        yield Finding("swap", "ok", "there is no swap space")


def check_overcommit(_plan: ExaminedRun, _around: Surroundings) -> Iterator[Finding]:
    """Whether the kernel refuses memory that is reserved and not used."""
    try:
        strict = Path("/proc/sys/vm/overcommit_memory").read_text(encoding="ascii").strip() == "2"
    except OSError:
        return
    if strict:
        yield Finding(
            "overcommit",
            "warning",
            "vm.overcommit_memory is 2: reserved memory counts as used",
            "set it to 0 (sysctl vm.overcommit_memory=0) if processes fail to start",
        )


def check_shared(plan: ExaminedRun, _around: Surroundings) -> Iterator[Finding]:
    """Memory that processes share: anonymous (journals, hogwild) and /dev/shm (data loading)."""
    try:
        os.close(reserve())
    except OSError as error:
        needs = plan.needs.shared_memory
        yield Finding(
            "shared memory",
            "error" if needs else "warning",
            f"memfd_create fails ({error})",
            "allow the system call memfd_create in the container's seccomp profile",
        )
    else:
        yield Finding("shared memory", "ok", "anonymous shared memory works")
    loaders = 0 if plan.job is None else plan.job.num_workers
    try:
        facts = os.statvfs(SHARED)
    except OSError as error:
        yield Finding(
            f"{SHARED}",
            "error" if loaders else "warning",
            f"is not there ({error.strerror})",
            "mount a tmpfs there: processes that load data (num_workers) use it",
        )
        return
    free = facts.f_bavail * facts.f_frsize
    if free <= _SMALL:
        yield Finding(
            f"{SHARED}",
            "error" if loaders and not free else "warning",
            f"{size(free)} of {size(facts.f_blocks * facts.f_frsize)} are free",
            "give the container more (docker run --shm-size=1g), or use num_workers=0",
        )
    else:
        yield Finding(f"{SHARED}", "ok", f"{size(free)} are free")


def _joined(words: str, more: str) -> str:
    return f"{words}; {more}" if more else words
