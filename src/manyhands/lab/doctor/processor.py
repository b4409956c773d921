"""Checks of the processor: threads against cores, quotas, time taken by other machines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.lab.doctor.finding import Finding
from manyhands.live.agent.checks import crowded
from manyhands.live.devices import devices
from manyhands.reports.formatting import percent, plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.lab.doctor.finding import ExaminedRun, Surroundings

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_STEAL = 0.05
"""Fraction of the time taken by other virtual machines above which a warning is given."""
_LOOK = 0.3
"""Seconds over which stolen time is measured."""


def check_threads(plan: ExaminedRun, around: Surroundings) -> Iterator[Finding]:
    """Threads of all workers, against the cores."""
    on = f"{plan.cores} core{plural(plan.cores)}"
    given = [name for name in _THREAD_VARIABLES if around.environment.get(name)]
    for name in given:
        text = around.environment[name].partition(",")[0].strip()
        if not text.isdecimal() or int(text) < 1:
            words = f"{name} is {around.environment[name]!r}, which is no number of threads"
            yield Finding("threads", "error", words, f"unset {name}, or set it to 1")
            continue
        threads, workers = int(text), plan.here
        words = f"{name} is {threads}: {workers} worker{plural(workers)} × {threads} on {on}"
        fitting = max(1, plan.cores // max(1, workers))
        if threads > 1 and threads * workers > plan.cores:
            advice = f"unset {name}, or set it to {fitting}: threads that share a core wait for it"
            yield Finding("threads", "warning", words, advice)
        else:
            yield Finding("threads", "ok", words)
    if not given:
        threads = max(1, plan.cores // max(1, plan.here))
        each = f"{threads} thread{plural(threads)}"
        yield Finding("threads", "ok", f"each worker gets {each} on {on}")


def check_cores(plan: ExaminedRun, around: Surroundings) -> Iterator[Finding]:
    """Workers against cores, a quota of the control group, other programs."""
    crowd = crowded(plan.here, plan.cores)
    if crowd and set(devices(plan.here)) == {"cpu"}:
        yield Finding("cores", "warning", crowd, "use fewer workers, or more hosts")
    else:
        workers = f"{plan.here} worker{plural(plan.here)}"
        yield Finding("cores", "ok", f"{plan.cores} for {workers}")
    quota = around.groups.cores()
    if quota is not None and quota < plan.cores:
        yield Finding(
            "processor quota",
            "warning",
            f"the control group may use {quota:g} of {plan.cores} cores",
            f"use at most {max(1, int(quota))} worker{plural(max(1, int(quota)))}, or raise the "
            "quota (docker run --cpus)",
        )
    elif quota is not None:
        yield Finding("processor quota", "ok", f"{quota:g} cores")
    load = os.getloadavg()[0]
    if load > plan.cores:
        yield Finding(
            "other programs",
            "warning",
            f"a load of {load:.1f} on {plan.cores} core{plural(plan.cores)}",
            "wait for them, or end them: figures of speed will not be comparable",
        )
    else:
        yield Finding("other programs", "ok", f"a load of {load:.1f}")


def check_steal(_plan: ExaminedRun, around: Surroundings) -> Iterator[Finding]:
    """Time that the machine below a virtual machine gives to others."""
    before = _ticks()
    around.sleep(_LOOK)
    after = _ticks()
    share = max(stolen(before, after), stolen([0] * len(after), after))
    words = f"{percent(share)} of the time is taken by other virtual machines"
    if share > _STEAL:
        advice = "use another machine, or repeat runs: workers are slow without a reason of theirs"
        yield Finding("stolen time", "warning", words, advice)
    else:
        yield Finding("stolen time", "ok", words)


def stolen(before: list[int], after: list[int]) -> float:
    """The share of stolen time between two readings of the first line of /proc/stat.

    >>> stolen([0] * 8, [50, 0, 10, 30, 0, 0, 0, 10])
    0.1
    """
    spent = [late - early for early, late in zip(before, after, strict=True)][:8]
    return spent[7] / sum(spent) if len(spent) > 7 and sum(spent) > 0 else 0.0


def _ticks() -> list[int]:
    first = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    return [int(number) for number in first.split()[1:]]
