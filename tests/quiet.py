"""Tests that compare times, on a machine whose cores others may take away.

A `timed` test that fails while others took part of the cores says nothing about the project. It is
run again, up to three times in all. If it fails in a run during which the cores were ours, it has
failed; if there was no such run, it is skipped, and the reason says how much was taken.
"""

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

ATTEMPTS = 3
# Of the time of all cores. A machine that is left alone loses less than 1 %.
MOST_TAKEN = 0.03
_STAT = Path("/proc/stat")
_STEAL = 7
_REPEAT_AFTER = 20.0


def stolen() -> tuple[float, float]:
    """Seconds of all cores that the host gave to other machines, and all seconds, since boot."""
    if not _STAT.exists():
        return 0.0, time.monotonic()
    ticks = [int(one) for one in _STAT.read_text().splitlines()[0].split()[1:9]]
    per_second = os.sysconf("SC_CLK_TCK")
    return ticks[_STEAL] / per_second, sum(ticks) / per_second


def others(seconds: float = 1.0) -> float:
    """The share of the cores that somebody else has now, while no test runs."""
    cores = sorted(os.sched_getaffinity(0))
    got = dict.fromkeys(cores, 0.0)

    def spin(core: int) -> None:
        # This thread alone is bound to the core; hashing lets the other threads run.
        os.sched_setaffinity(threading.get_native_id(), {core})
        ends = time.monotonic() + seconds
        begun = time.thread_time()
        block = bytes(1 << 20)
        while time.monotonic() < ends:
            hashlib.blake2b(block).digest()
        got[core] = time.thread_time() - begun

    begun = time.monotonic()
    threads = [threading.Thread(target=spin, args=(core,)) for core in cores]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return max(0.0, 1 - sum(got.values()) / (len(cores) * (time.monotonic() - begun)))


class Watch:
    """How much of the cores others took during a test."""

    def __init__(self) -> None:
        self._before = others()
        self._stolen, self._all = stolen()

    def taken(self) -> float:
        """The largest of: what the host took meanwhile, and what others had before and after."""
        stolen_now, all_now = stolen()
        passed = max(all_now - self._all, 1e-9)
        return max((stolen_now - self._stolen) / passed, self._before, others())


def run(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Run a timed test until it passes, or fails on a machine that is ours."""
    for attempt in range(1, ATTEMPTS + 1):
        watch = Watch()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        failed = [one for one in reports if one.failed]
        taken = watch.taken() if failed else 0.0
        if taken > MOST_TAKEN:
            reason = f"others took {taken:.0%} of the cores (attempt {attempt} of {ATTEMPTS})"
            if attempt < ATTEMPTS:
                _say(item, f"{item.nodeid}: {reason}; it is run again")
                time.sleep(_REPEAT_AFTER)
                item._initrequest()  # type: ignore[attr-defined]
                continue
            for one in failed:
                path, line, _ = item.location
                one.outcome = "skipped"
                one.longrepr = (path, (line or 0) + 1, f"Skipped: {reason}: {one.longreprtext}")
        for one in reports:
            item.ihook.pytest_runtest_logreport(report=one)
        return


def _say(item: pytest.Item, text: str) -> None:
    reporter = item.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(f"\n{text}")
